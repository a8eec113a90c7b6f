"""Packages modules and exported programs as one file that runs without torch.

Also selects the processors that native code is built for.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch

from precast._version import __version__
from precast.artifact.archive import Content, check_folder
from precast.artifact.manifest import packed_entry
from precast.artifact.package import SAMPLES, NativeCode, write_package
from precast.artifact.schema import Json
from precast.artifact.signatures import private_key
from precast.artifact.signatures import sign as sign_manifest
from precast.artifact.weights import Weight, weight_pieces
from precast.errors import InputValueError
from precast.export.program import ExportedProgram
from precast.export.serialize import schema
from precast.export.serialize.document import Document, from_document, to_document
from precast.native.describe import Entry, Storage, describe_entry
from precast.native.targets import Target
from precast.options import Options, as_options
from precast.packaging.calls import call_to_json, exported_entries, with_names
from precast.packaging.native_program import RANDOM_SEED, gpu_target, library_target, native_program
from precast.packaging.precision import in_bfloat16
from precast.packaging.samples import Call, calls_to_sample, entry_samples
from precast.packaging.storages import SharedStorages, refuse_shared_updates
from precast.packaging.traced_program import TracedProgram, fold_constants_of, trace_program
from precast.runtime.processor import LEVELS, features_of_this_machine

NATIVE = "native"
_GPU = re.compile(r"cuda:sm_([89]\d|1[0-9]\d)")


@dataclass(frozen=True)
class BuildTarget:
    """A kind of processor by its name, None for this machine's, and the features that it requires."""

    name: str
    processor: str | None
    features: tuple[str, ...]

    @property
    def is_gpu(self) -> bool:
        return self.name.startswith("cuda:")

    @property
    def target(self) -> Target:
        """The target that generates its code."""
        return gpu_target() if self.is_gpu else library_target()


def build_targets(names: Sequence[str]) -> tuple[BuildTarget, ...]:
    """The targets of these names, each once, in a fixed order."""
    if isinstance(names, str) or not names:
        raise InputValueError(
            f"targets cannot be {names!r}.",
            why="they are a sequence of names",
            fix="Write, for example, targets=('x86-64-v3', 'native').",
        )
    unknown = [name for name in names if name not in (NATIVE, *LEVELS) and not _GPU.fullmatch(name)]
    if unknown:
        raise InputValueError(
            f"There is no target {unknown[0]!r}.",
            why=f"targets are {', '.join((NATIVE, *LEVELS))} and GPUs of NVIDIA's from cuda:sm_80 on",
            fix="Name one of these; 'native' is the processor of this machine.",
        )
    return tuple(_target(name) for name in sorted(set(names)))


def _target(name: str) -> BuildTarget:
    if _GPU.fullmatch(name):
        architecture = name.removeprefix("cuda:")
        return BuildTarget(name, architecture, (architecture,))
    if name == NATIVE:
        return BuildTarget(name, None, features_of_this_machine())
    return BuildTarget(name, name, ("x86_64", *LEVELS[name]))


@dataclass(frozen=True)
class PreparedEntry:
    """An entry ready to be written: code to generate, its program as text, and its description for the manifest.

    `codes` has it for each target by name; all of them have the same inputs and outputs.
    """

    codes: Mapping[str, Entry]
    program: bytes
    call: Json
    state_names: Mapping[str, str]
    samples: list[Json]
    sample_tensors: Mapping[str, Weight]

    @property
    def code(self) -> Entry:
        """The code for the first target."""
        return next(iter(self.codes.values()))

    def record(self, member: str) -> Json:
        """The entry in the manifest, with its program in that member."""
        parts: dict[str, Json] = {"state_names": dict(self.state_names), "samples": self.samples}
        return packed_entry(describe_entry(self.code), call=self.call, program=member, **parts)


def package(
    module_or_program_or_entries: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    path: str | os.PathLike[str],
    dynamic_shapes: Any = None,
    targets: Sequence[str] = ("native",),
    samples: bool | Sequence[Call] | Mapping[str, bool | Sequence[Call]] = True,
    sign: Any = None,
    options: Options | Mapping[str, Any] | None = None,
) -> Path:
    """Write a package to ``path``: a file that ``precast.runtime.load`` runs without torch.

    Package a module or function with example arguments, an exported program, or a mapping of several entries that share
    one set of weights: ``{"forward": program, "eval": (module, args)}`` (kwargs and dynamic_shapes may follow in the
    tuple). Buffers that a program updates become state of the loaded model. Everything else is constant and folded at
    packaging time; ``options={"freeze": False}`` keeps all parameters and buffers as they are.

    ``targets``: the processors to generate code for: ``"x86-64-v3"``, ``"x86-64-v4"``, ``"native"`` (this machine), and
    NVIDIA GPUs by architecture, such as ``"cuda:sm_90"``. Generating code for a GPU needs Triton, but no GPU.
    ``samples``: store the example arguments with their expected results, for ``precast verify``; or other calls to
    store, as ``(args, kwargs)``, also by entry. ``False`` stores no example arguments at all.
    ``sign``: a private ed25519 key; the signature is written to a file with ``.sig`` appended to the name.

    The same arguments and versions produce the same bytes.

    >>> import tempfile, precast.runtime
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = package(torch.nn.ReLU(), (torch.ones(2),), path=f"{folder}/relu.precast")
    ...     precast.runtime.load(path)(torch.tensor([-1.0, 1.0]))
    tensor([0., 1.])
    """
    check_folder(Path(path))
    programs = exported_entries(module_or_program_or_entries, args, kwargs, dynamic_shapes)
    return package_programs(programs, path=path, targets=targets, samples=samples, sign=sign, options=options)


def package_programs(
    programs: Mapping[str, ExportedProgram],
    *,
    path: str | os.PathLike[str],
    targets: Sequence[str],
    samples: bool | Sequence[Call] | Mapping[str, bool | Sequence[Call]],
    sign: Any,
    options: Options | Mapping[str, Any] | None,
    seed: int = 0,
) -> Path:
    """The same for exported programs; ``seed`` is the initial random seed."""
    chosen = build_targets(targets)
    key = None if sign is None else private_key(sign)
    if samples is False:
        programs = {name: _without_examples(program) for name, program in programs.items()}
    storages = SharedStorages(first_seed=seed)
    chosen_options = as_options(options)
    kinds = list({each.target.name: each.target for each in chosen}.values())
    prepared = prepare_entries(programs, storages, chosen_options, samples=samples, targets=kinds)
    refuse_shared_updates(storages.state, {name for each in prepared.values() for name in each.code.updated_state})
    code, libraries = build_code(prepared.values(), storages, chosen, chosen_options)
    return write_package(
        Path(path),
        entries=[each.record(program_member(name, programs)) for name, each in prepared.items()],
        code=code,
        weights=storages.weights,
        state=storages.state,
        members=_members(prepared, storages),
        libraries=libraries,
        made_with={"precast": __version__, "torch": str(torch.__version__)},
        sign=None if key is None else lambda manifest: sign_manifest(manifest, key),
    )


def _members(prepared: Mapping[str, PreparedEntry], storages: SharedStorages) -> dict[str, Content]:
    """The members of the file besides code and weights."""
    members: dict[str, Content] = {program_member(name, prepared): each.program for name, each in prepared.items()}
    samples = {name: tensor for each in prepared.values() for name, tensor in each.sample_tensors.items()}
    for name, tensors in ((f"{schema.EXAMPLES}.safetensors", storages.examples), (SAMPLES, samples)):
        if tensors:
            members[name] = weight_pieces(tensors)
    return members


def prepare_entries(
    programs: Mapping[str, ExportedProgram],
    storages: SharedStorages,
    options: Options,
    *,
    samples: object = False,
    checks_sizes: bool = True,
    targets: Sequence[Target] = (),
) -> dict[str, PreparedEntry]:
    """Lower the programs over shared storages; state that no program updates is constant, unless options say no."""
    targets = targets or (library_target(),)
    if options.precision == "bf16":
        programs = in_bfloat16(programs)
    documents = {name: to_document(program) for name, program in programs.items()}
    added = {name: storages.add(name, document) for name, document in documents.items()}
    traced = {name: trace_program(own_copy(document), added[name][1]) for name, document in documents.items()}
    if options.freeze is not False:
        traced = fold_constants_of(traced)
    return {
        name: _prepared(name, exported, traced[name], *added[name], storages, samples, checks_sizes, targets)
        for name, exported in programs.items()
    }


def _prepared(
    name: str,
    exported: ExportedProgram,
    traced: TracedProgram,
    content: Mapping[str, Json],
    state_names: Mapping[str, str],
    storages: SharedStorages,
    samples: object,
    checks_sizes: bool,
    targets: Sequence[Target],
) -> PreparedEntry:
    computed = [node for node in traced.constants if traced.plain_name(node) is None]
    constant_names = {node.name: storages.add_computed(traced.value_of_constant(node)) for node in computed}
    made = {
        each.name: native_program(traced, name=name, constant_names=constant_names, target=each) for each in targets
    }
    # The last one: assumptions about sizes made for one target apply to all.
    native = list(made.values())[-1]
    if native.draws:
        storages.add_seed(RANDOM_SEED)
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    call = call_to_json(traced.exported, native.sizes, native.outputs, checks_sizes=checks_sizes)
    codes = {
        kind: with_names(each.entry if checks_sizes else replace(each.entry, conditions=()), traced, each.outputs)
        for kind, each in made.items()
    }
    _check_alike(list(codes.values()))
    # Samples of a program that draws random numbers are impossible: torch draws others.
    calls = [] if native.draws else calls_to_sample(samples, name, exported)
    kept, tensors = entry_samples(name, exported, native.outputs, calls)
    return PreparedEntry(codes, text.encode(), call, state_names, kept, tensors)


def _check_alike(codes: Sequence[Entry]) -> None:
    first, *others = [cast(dict[str, Json], describe_entry(code)) for code in codes]
    for other in others:
        for what in ("inputs", "outputs", "sizes"):
            assert first[what] == other[what], f"targets disagree on the {what} of {first['name']}"


def own_copy(document: Document) -> ExportedProgram:
    """A copy of the program with its own shape environment: compiling may assume more about sizes than tracing."""
    content = json.loads(json.dumps(document.content))
    return from_document(content, document.members)


def program_member(name: str, programs: Mapping[str, object]) -> str:
    """The member for an entry's program; a single one has the name that saved programs use."""
    return schema.PROGRAM if len(programs) == 1 else f"programs/{name}.json"


def build_code(
    prepared: Iterable[PreparedEntry], storages: SharedStorages, targets: Sequence[BuildTarget], options: Options
) -> tuple[dict[str, NativeCode], tuple[str, ...]]:
    """The code for each target, and the libraries to load before the code for processors."""
    entries, places = list(prepared), stored_places(storages.state)
    code, needs = dict[str, NativeCode](), tuple[str, ...]()
    for target in targets:
        codes, kind = [each.codes[target.target.name] for each in entries], target.target
        library, needed = kind.build_library(codes, places, options, processor=target.processor)
        code[target.name], needs = NativeCode(library, target.features), needs or needed
    return code, needs


def stored_places(state: Mapping[str, Json]) -> dict[str, Storage]:
    """Where each tensor of the state is in the stored weights."""
    records: Any = state
    return {
        name: Storage(record["storage"], record["offset"], tuple(record["strides"])) for name, record in records.items()
    }


def _without_examples(exported: ExportedProgram) -> ExportedProgram:
    origin = replace(exported.origin, example_inputs=None)
    return ExportedProgram(exported.program, origin, dialect=exported._dialect)
