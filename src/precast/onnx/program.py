"""The exported model as an object: to inspect, save, run, and feed as the original was called.

Models on disk: whole or not at all, with the weights beside the file where it would grow too large.
"""

import io
import os
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
    """Refuse a place that cannot be written to, before any work is done."""
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
        fix="Name a file in a folder that exists and is yours.",
    )


def save_model(model: ir.Model, path: str | os.PathLike[str], *, external_data: ExternalData = "auto") -> None:
    """Write the model; weights go to ``<name>.data`` beside it on demand, or when one file cannot hold them.

    Weights that are missing become inputs. The files appear when they are complete; what was there before stays
    until then. At no moment does a model lie beside data of another.
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

    Data of that name may belong to the model that is there. So a third model comes between the two, over the new data
    under another name, and the data get their own name when no model has the old ones any more.
    """
    place = destination.with_name(data.name)
    if not place.exists():
        replace_together([(data, place), (written, destination)])
        return
    between = destination.with_name(f"{data.name}.new")
    os.link(data, data.with_name(between.name))
    renamed = written.with_name(f"{written.name}.between")
    _save_over(written, renamed, data_name=between.name)
    replace_together([(data.with_name(between.name), between), (renamed, destination)])
    os.replace(data, place)
    os.replace(written, destination)
    between.unlink()


def _save_over(model: Path, copy: Path, *, data_name: str) -> None:
    """Write a copy of a model whose data have another name."""
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
            fix='Leave external_data="auto": the weights then lie beside the file.',
        )
    return is_large if wanted in ("auto", None) else bool(wanted)


@contextmanager
def _rearranged(model: ir.Model, *, include_initializers: bool, keep_initializers_as_inputs: bool) -> Iterator[None]:
    """While active, the model has its weights where the file shall have them."""
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
    """What ``precast.onnx.export`` returns.

    ``model`` is the model in onnx_ir's form, free to edit. ``rules`` tells how each operator was translated, and
    ``verification`` what was checked. ``updates`` names outputs behind the user's that hold new values of state.
    ``exported_program`` is what was translated. What is called returns the model's outputs one after the other, as
    torch's exporter does; ``call_as_model`` puts them into what the original returns.
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
    """How torch's own ``assert_onnx_program`` calls capturing without reading bytecode; it asks."""

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
        """Write the model to a file, all or nothing; weights are beside it where one file cannot hold them.

        ``include_initializers=False`` leaves the weights out. ``keep_initializers_as_inputs`` makes inputs of them
        too, behind the user's, for runtimes that exchange weights.
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
        """Fold constants and recognize patterns, in place."""
        fold(self.model, opset=self.model.opset_imports[""])
        self.release()

    def quantized(self, scheme: Scheme = "int8") -> "ONNXProgram":
        """The same program with the weights of matrix products in few bits.

        ``int8`` and ``int4`` keep computing in floats. ``dynamic_int8`` rounds activations too, and multiplies whole
        numbers. ``verification`` tells how far the results are from those of this program, on the example.
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
        """Give a model that was exported without weights the tensors of a safetensors file, by name."""
        attach(self.model, Path(path))
        self.release()

    def apply_weights(self, state_dict: Mapping[str, torch.Tensor]) -> None:
        """Give the model these weights, by the names that they have in the module; it must have all of these."""
        weights = self.model.graph.initializers
        if unknown := [name for name in state_dict if name not in weights]:
            warnings.warn(f"The model has no weights called {', '.join(unknown)}.", UserWarning, stacklevel=2)
        for name in state_dict.keys() & weights.keys():
            weights[name].const_value = TorchWeight(state_dict[name], name)
        self.release()

    def rename_axes(self, rename_mapping: Mapping[str | ir.SymbolicDim, str]) -> None:
        """Give sizes other names, by their names or by the dims that a shape in ``model`` holds."""
        rename_axes(self.model, {str(name): new for name, new in rename_mapping.items()})
        self.release()

    def adapt_torch_inputs(self, *args: Any, include_state: bool = False, **kwargs: Any) -> list[torch.Tensor]:
        """The model's inputs for a call of the original; ``include_state`` appends the weights."""
        assert self.input_adapter is not None, "exported programs have one"
        return self.input_adapter(args, kwargs, include_state=include_state)

    def adapt_torch_outputs(self, result: Any) -> list[torch.Tensor]:
        """The tensors that the model returns, of what the original returned."""
        assert self.output_adapter is not None, "exported programs have one"
        return self.output_adapter.to_model(result)

    def initialize_inference_session(self, initializer: Callable[[str | bytes], Any] | None = None) -> None:
        """Open the model in onnxruntime; ``initializer`` makes a session of the file's name or of the model's bytes."""
        self._session = Session(self.model, initializer)

    def release(self) -> None:
        """Close the session; the next call opens another."""
        self._session = None

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Run the model in onnxruntime, called as the original; its outputs in order."""
        if self._session is None:
            self.initialize_inference_session()
        assert self._session is not None, "just opened"
        outputs = self._session.run(self.adapt_torch_inputs(*args, **kwargs))
        return tuple(outputs[: len(outputs) - len(self.updates)])

    def call_as_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model in onnxruntime; what it returns has the structure of what the original returns."""
        assert self.output_adapter is not None, "exported programs have one"
        return self.output_adapter.to_user(self(*args, **kwargs))

    def call_reference(self, *args: Any, **kwargs: Any) -> tuple[torch.Tensor, ...]:
        """Run the model in onnx's own reference implementation: slow, and close to the letter of the standard."""
        names = [str(value.name) for value in self.model.graph.inputs]
        feed = dict(zip(names, map(as_array, self.adapt_torch_inputs(*args, **kwargs)), strict=True))
        outputs = ReferenceEvaluator(self.model_proto).run(None, feed)
        assert isinstance(outputs, list), "it was given arrays"
        return tuple(map(as_torch, outputs[: len(outputs) - len(self.updates)]))

    def compute_values(
        self, value_names: Sequence[str], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> tuple[torch.Tensor, ...]:
        """What any values of the model are in a call, by their names."""
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
        """Operator, whose rule translated it, and how often; most frequent first."""
        counts = Counter((use.operator, f"{use.source}:{use.rule}") for use in self.rules)
        return [(operator, rule, count) for (operator, rule), count in counts.most_common()]
