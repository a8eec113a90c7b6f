"""The report of a package: entries, targets, files and weights; with torch, the graphs of its programs too."""

from __future__ import annotations

from datetime import datetime
from importlib.util import find_spec
from math import prod
from pathlib import Path

from precast.artifact.dtypes import DTYPES
from precast.artifact.manifest import PackedEntry, StateRecord, TensorDescription
from precast.artifact.package import Package, open_package
from precast.artifact.signatures import SUFFIX
from precast.report import contents
from precast.runtime.gpu.open import features_for


def package_report(path: Path) -> contents.Report:
    """The report of a file; everything in it is checked, nothing in it is run."""
    package = open_package(path, writable=True)
    graphs: dict[str, object] = {}
    if find_spec("torch") is not None:
        from precast.report.program_contents import program_graphs

        graphs = program_graphs(package)
    return contents.Report(
        path.name,
        "package" if package.manifest.entries else "program",
        datetime.now().astimezone().isoformat(timespec="seconds"),
        dict(package.manifest.made_with),
        package=_package(package, path),
        **graphs,  # type: ignore[arg-type]  # fields of a report, made where torch is
    )


def _package(package: Package, path: Path) -> contents.Package:
    manifest = package.manifest
    return contents.Package(
        str(path),
        path.stat().st_size,
        Path(f"{path}{SUFFIX}").exists(),
        tuple(map(_entry, manifest.entries)),
        tuple(
            contents.Target(
                each.name,
                0 if each.file is None else manifest.files[each.file].size,
                each.features,
                tuple(sorted(set(each.features) - features_for(each))),
            )
            for each in manifest.targets
        ),
        manifest.libraries,
        {name: record.size for name, record in manifest.files.items()},
        tuple(_weight(name, record) for name, record in manifest.state.items()),
    )


def _entry(entry: PackedEntry) -> contents.Entry:
    interface, call = entry.interface, entry.call
    names = [each.name for each in interface.inputs]
    if call is not None and len(call.argument_names) == len(names):
        names = list(call.argument_names)
    inputs = tuple(_tensor(each, name) for each, name in zip(interface.inputs, names, strict=True))
    outputs = tuple(_tensor(each, each.name) for each in interface.outputs)
    taken, returned = (", ".join(f"{each.name}: {each.value}" for each in tensors) for tensors in (inputs, outputs))
    return contents.Entry(
        entry.name,
        f"{entry.name}({taken}) -> ({returned})",
        inputs,
        outputs,
        tuple(_tensor(each, each.name) for each in interface.updates),
        () if call is None else tuple(f"{each.name} ({each.symbol}) in {each.range_text}" for each in call.symbols),
        len(interface.weights),
        len(entry.samples),
    )


def _tensor(tensor: TensorDescription, name: str) -> contents.Tensor:
    return contents.Tensor(name, f"{tensor.dtype}[{', '.join(map(str, tensor.shape))}]")


def _weight(name: str, record: StateRecord) -> contents.Weight:
    size = prod(record.shape) * DTYPES[record.dtype].item_size
    return contents.Weight(name, f"{record.dtype}[{', '.join(map(str, record.shape))}]", size, record.storage)
