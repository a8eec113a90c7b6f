"""The exported model as an object: to inspect, save, run, and call like the original.

Models are saved completely or not at all, with the weights in a separate file if one would be too large.
"""

import io
import itertools
import os
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
import onnx_ir as ir
import torch
from onnx import external_data_helper
from onnx.reference import ReferenceEvaluator

from precast.cache.partial import partial_folder, replace_together
from precast.errors import InputValueError, OnnxError, OptionError
from precast.export import ExportedProgram
from precast.onnx.adapters import InputAdapter, OutputAdapter
from precast.onnx.axes import rename_axes
from precast.onnx.optimize import fold
from precast.onnx.quantize import Scheme, quantized_model, relative_error
from precast.onnx.session import IN_MEMORY_LIMIT, Session, as_array, as_torch, weight_bytes
from precast.onnx.translate import RuleUse, as_own_output
from precast.onnx.verify import Verification, check_structure
from precast.onnx.weights import TorchWeight, attach, missing_as_inputs, missing_in, missing_weights

ExternalData = bool | Literal["auto"] | None


def check_destination(path: str | os.PathLike[str]) -> Path:
    """Refuse a destination that cannot be written to, before any work is done."""
    destination = Path(path)
    folder = destination.absolute().parent
    if destination.is_dir():
        raise _unwritable(destination, "it is a folder")
    if not folder.is_dir():
        raise _unwritable(destination, f"the folder {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise _unwritable(destination, f"the folder {folder} cannot be written to")
    return destination


def _unwritable(destination: Path, why: str) -> InputValueError:
    return InputValueError(
        f"The model cannot be written to {destination}.",
        why=why,
        fix="Choose a path in an existing folder that you can write to.",
    )


def save_model(model: ir.Model, path: str | os.PathLike[str], *, external_data: ExternalData = "auto") -> None:
    """Write the model; weights go to ``<name>.data`` beside it on request, or when one file cannot hold them.

    Missing weights become inputs. The files appear only when they are complete; until then, the old ones stay.
    At no moment is a model paired with another model's data.
    """
    destination = check_destination(path)
    data_name = f"{destination.name}.data"
    is_external = is_external_data(model, external_data)
    try:
        with partial_folder(f".{destination.name[:100]}-", destination.absolute().parent) as folder:
            with missing_as_inputs(model):
                ir.save(model, folder / destination.name, external_data=data_name if is_external else None)
            if is_external:
                _place_with_data(folder / destination.name, folder / data_name, destination)
            else:
                os.replace(folder / destination.name, destination)
    except OSError as error:
        raise OnnxError(
            f"Writing {destination} failed.",
            why=str(error),
            fix="Free space or choose another place; no half-written file was left behind.",
        ) from error


def _place_with_data(written: Path, data: Path, destination: Path) -> None:
    """Move a model and its data to their places.

    Data of that name may belong to the existing model. So an intermediate model is written first, which refers to the
    new data under an unused name; the data get their final name when no model refers to the old ones any more.
    Leftovers of a killed writer are removed in the end.
    """
    place = destination.with_name(data.name)
    left = _between(place)
    if not place.exists() and not left:
        replace_together([(data, place), (written, destination)])
        return
    names = (f"{data.name}.new{number or ''}" for number in itertools.count())
    between = next(place.with_name(name) for name in names if not place.with_name(name).exists())
    os.link(data, data.with_name(between.name))
    renamed = written.with_name(f"{written.name}.between")
    _save_over(written, renamed, data_name=between.name)
    replace_together([(data.with_name(between.name), between), (renamed, destination)])
    os.replace(data, place)
    os.replace(written, destination)
    for path in (between, *left):
        path.unlink(missing_ok=True)


def _between(place: Path) -> list[Path]:
    """The data files of intermediate models."""
    pattern = re.compile(rf"{re.escape(place.name)}\.new\d*")
    return [path for path in place.parent.iterdir() if pattern.fullmatch(path.name)]


def _save_over(model: Path, copy: Path, *, data_name: str) -> None:
    """Write a copy of a model that refers to its data by another name."""
    proto = onnx.load_model(model, load_external_data=False)
    for tensor in external_data_helper._get_all_tensors(proto):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = data_name
    copy.write_bytes(proto.SerializeToString())


def is_external_data(model: ir.Model, wanted: ExternalData) -> bool:
    """Whether the weights get a file of their own."""
    if wanted not in (True, False, "auto", None):
        raise OptionError(
            f"external_data is {wanted!r}.", why="it says where weights are stored", fix='Pass True, False or "auto".'
        )
    is_large = weight_bytes(model) >= IN_MEMORY_LIMIT
    if is_large and wanted is False:
        raise OnnxError(
            f"The weights take {weight_bytes(model):,} bytes, too much for one file.",
            why="an ONNX file is a protobuf message, which holds less than 2 GB",
            fix='Leave external_data="auto": the weights are then stored beside the file.',
        )
    return is_large if wanted in ("auto", None) else bool(wanted)


@contextmanager
def _rearranged(model: ir.Model, *, include_initializers: bool, keep_initializers_as_inputs: bool) -> Iterator[None]:
    """While active, the model's weights are arranged as the file shall have them."""
    graph = model.graph
    inputs, weights = list(graph.inputs), dict(graph.initializers)
    try:
        if not include_initializers:
            graph.initializers.clear()
        if keep_initializers_as_inputs:
            graph.inputs.extend(weights.values())
        yield
    finally:
        graph.inputs[:] = inputs
        graph.initializers.update(weights)


@dataclass(eq=False, repr=False)
class ONNXProgram:
    """An ONNX model, as ``precast.onnx.export`` returns it.

    ``model`` is the model as an ``onnx_ir.Model``, which you may edit. ``rules`` says how each operator was translated,
    ``verification`` what was checked, and ``updates`` which outputs after the user's hold new values of state.
    ``exported_program`` is the program that was translated. Calling the object runs the model in onnxruntime and
    returns a flat tuple of outputs, like torch's exporter; ``call_as_model`` returns the structure of the original.
    """

    model: ir.Model
    rules: tuple[RuleUse, ...]
    verification: Verification
    updates: tuple[str, ...] = ()
    input_adapter: InputAdapter | None = None
    output_adapter: OutputAdapter | None = None
    exported_program: ExportedProgram | None = None
    _session: Session | None = field(default=None, init=False)

    _capture_strategy: ClassVar[str] = "TorchExportNonStrictStrategy"
    """Torch's ``assert_onnx_program`` reads this: its name for capture without bytecode analysis."""

    def __repr__(self) -> str:
        """``ONNXProgram(x: FLOAT[batch,4]) -> (y: FLOAT[batch,2]), 4 nodes, opset 20``, and what was checked."""
        inputs, outputs = (
            ", ".join(f"{value.name}: {value.dtype}{value.shape}" for value in values)
            for values in (self.model.graph.inputs, self.model.graph.outputs)
        )
        size = f"{len(self.model.graph)} nodes, opset {self.model.opset_imports['']}"
        return f"ONNXProgram({inputs}) -> ({outputs}), {size}\n{self.verification}"

    @property
    def model_proto(self) -> onnx.ModelProto:
        """The model as a protobuf message, weights included."""
        if missing := missing_in(self.model):
            raise missing_weights(missing)
        if weight_bytes(self.model) >= IN_MEMORY_LIMIT:
            raise OnnxError(
                "The model is too large for one protobuf message.",
                why="a message holds less than 2 GB",
                fix="Call save(path), which puts the weights beside the file.",
            )
        return ir.to_proto(self.model)

    def save(
        self,
        destination: str | os.PathLike[str] | io.BytesIO,
        *,
        include_initializers: bool = True,
        keep_initializers_as_inputs: bool = False,
        external_data: ExternalData = "auto",
    ) -> None:
        """Write the model to a file, atomically; weights that do not fit go to a data file beside it.

        ``include_initializers=False`` leaves the weights out. ``keep_initializers_as_inputs`` also lists them as
        inputs, after the user's, for runtimes that swap weights.
        """
        with _rearranged(
            self.model,
            include_initializers=include_initializers,
            keep_initializers_as_inputs=keep_initializers_as_inputs,
        ):
            if isinstance(destination, io.BytesIO):
                destination.write(self.model_proto.SerializeToString())
            else:
                save_model(self.model, destination, external_data=external_data)

    def optimize(self) -> None:
        """Optimize the model in place: constant folding and pattern fusion."""
        fold(self.model, opset=self.model.opset_imports[""])
        self.release()

    def quantized(self, scheme: Scheme = "int8") -> "ONNXProgram":
        """Return the same program with quantized weights.

        ``int8`` and ``int4`` quantize weights only and compute in floating point; ``dynamic_int8`` also quantizes
        activations and multiplies integers. ``verification`` says how far results on the example are from those of this
        program.
        """
        model = quantized_model(self.model, scheme)
        check_structure(model)
        exported = self.exported_program
        if exported is None or exported.example_inputs is None:
            verification = Verification(("structure",), ("the numbers: the program has no example inputs",))
        else:
            args, kwargs = exported.example_inputs
            error = relative_error(model, self.model, self.adapt_torch_inputs(*args, **kwargs))
            verification = Verification(("structure", f"example inputs, off by {error:.2%}"))
        return replace(self, model=model, verification=verification)

    def attach_weights(self, path: str | os.PathLike[str]) -> None:
        """Attach the tensors of a safetensors file, by name, to a model that was exported without weights."""
        attach(self.model, Path(path))
        self.release()

    def apply_weights(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Replace weights by these tensors, by their names in the module; all names must exist in the model."""
        weights = self.model.graph.initializers
        if unknown := [name for name in state_dict if name not in weights]:
            warnings.warn(f"The model has no weights called {', '.join(unknown)}.", UserWarning, stacklevel=2)
        for name in state_dict.keys() & weights.keys():
            weights[name].const_value = TorchWeight(state_dict[name], name)
        self.release()

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Rename dynamic axes; keys are names, or dimensions of a shape in ``model``."""
        rename_axes(self.model, {str(name): new for name, new in rename_mapping.items()})
        self.release()

    def adapt_torch_inputs(self, *args: Any, include_state: bool = False, **kwargs: Any) -> list[torch.Tensor]:
        """Return the model's inputs for a call of the original; ``include_state`` appends the weights."""
        assert self.input_adapter is not None, "exported programs have one"
        return self.input_adapter(args, kwargs, include_state=include_state)

    def adapt_torch_outputs(self, result: Any) -> list[torch.Tensor]:
        """Flatten what the original returned to the tensors that the model returns."""
        assert self.output_adapter is not None, "exported programs have one"
        return self.output_adapter.to_model(result)

    def initialize_inference_session(self, initializer: Callable[[str | bytes], Any] | None = None) -> None:
        """Open the model in onnxruntime; ``initializer`` creates a session from a file name or the model's bytes."""
        self._session = Session(self.model, initializer)

    def release(self) -> None:
        """Close the session; the next call opens a new one."""
        self._session = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Run the model in onnxruntime, called like the original; returns its outputs in order."""
        if self._session is None:
            self.initialize_inference_session()
        assert self._session is not None, "just opened"
        outputs = self._session.run(self.adapt_torch_inputs(*args, **kwargs))
        return tuple(outputs[: len(outputs) - len(self.updates)])

    def call_as_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model in onnxruntime and return results in the structure that the original returns."""
        assert self.output_adapter is not None, "exported programs have one"
        return self.output_adapter.to_user(self(*args, **kwargs))

    def call_reference(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Run the model in onnx's reference implementation, which is slow and follows the standard closely."""
        names = [str(value.name) for value in self.model.graph.inputs]
        feed = dict(zip(names, map(as_array, self.adapt_torch_inputs(*args, **kwargs)), strict=True))
        outputs = ReferenceEvaluator(self.model_proto).run(None, feed)
        assert isinstance(outputs, list), "it was given arrays"
        return tuple(map(as_torch, outputs[: len(outputs) - len(self.updates)]))

    def compute_values(
        self, value_names: Sequence[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """Run the model and return intermediate values by name."""
        probe = self.model.clone()
        values = {value.name: value for node in probe.graph for value in node.outputs}
        values |= {value.name: value for value in (*probe.graph.inputs, *probe.graph.initializers.values())}
        if unknown := [name for name in value_names if name not in values]:
            raise InputValueError(
                f"The model has no values called {', '.join(unknown)}.",
                why="values are found by the names of the outermost graph",
                fix="Print program.model to see them.",
            )
        probe.graph.outputs[:] = [as_own_output(values[name], probe.graph) for name in value_names]
        return tuple(Session(probe).run(self.adapt_torch_inputs(*args, **(kwargs or {}))))

    def rule_summary(self) -> list[tuple[str, str, int]]:
        """Return each operator with the source of its translation rule and its count, most frequent first."""
        counts = Counter((use.operator, f"{use.source}:{use.rule}") for use in self.rules)
        return [(operator, rule, count) for (operator, rule), count in counts.most_common()]
