"""The exported model as an object: to inspect, save, run, and feed as the original was called.

Models on disk: whole or not at all, with the weights beside the file where it would grow too large.
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import onnx
import onnx_ir as ir
import torch
from onnx import external_data_helper

from precast.cache.partial import partial_folder, replace_together
from precast.errors import InputValueError, OnnxError, OptionError
from precast.onnx.adapters import InputAdapter, OutputAdapter
from precast.onnx.session import IN_MEMORY_LIMIT, Session, weight_bytes
from precast.onnx.translate import RuleUse
from precast.onnx.verify import Verification
from precast.onnx.weights import attach, missing_as_inputs, missing_in, missing_weights

ExternalData = bool | Literal["auto"]


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
    if wanted not in (True, False, "auto"):
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
    return is_large if wanted == "auto" else bool(wanted)


@dataclass(eq=False, repr=False)
class ONNXProgram:
    """What ``precast.onnx.export`` gives.

    ``model`` is the model in onnx_ir's form, free to edit. ``rules`` tells how each operator was translated, and
    ``verification`` what was checked. ``updates`` names outputs behind the user's that hold new values of state.
    """

    model: ir.Model
    rules: tuple[RuleUse, ...]
    verification: Verification
    updates: tuple[str, ...] = ()
    input_adapter: InputAdapter | None = None
    output_adapter: OutputAdapter | None = None
    _session: Session | None = field(default=None, init=False)

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

    def save(self, path: str | os.PathLike[str], *, external_data: ExternalData = "auto") -> None:
        """Write the model to a file, all or nothing; weights lie beside it where one file cannot hold them."""
        save_model(self.model, path, external_data=external_data)

    def attach_weights(self, path: str | os.PathLike[str]) -> None:
        """Give a model that was exported without weights the tensors of a safetensors file, by name."""
        attach(self.model, Path(path))
        self._session = None

    def adapt_torch_inputs(self, *args: Any, include_state: bool = False, **kwargs: Any) -> list[torch.Tensor]:
        """The model's inputs for a call of the original; ``include_state`` appends the weights."""
        assert self.input_adapter is not None, "exported programs have one"
        return self.input_adapter(args, kwargs, include_state=include_state)

    def adapt_torch_outputs(self, result: Any) -> list[torch.Tensor]:
        """The tensors that the model gives, of what the original returned."""
        assert self.output_adapter is not None, "exported programs have one"
        return self.output_adapter.to_model(result)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model in onnxruntime, as the original would be called; what it returns has the same structure."""
        assert self.output_adapter is not None, "exported programs have one"
        if self._session is None:
            self._session = Session(self.model)
        outputs = self._session.run(self.adapt_torch_inputs(*args, **kwargs))
        return self.output_adapter.to_user(outputs[: len(self.output_adapter.names)])

    def rule_summary(self) -> list[tuple[str, str, int]]:
        """Operator, whose rule translated it, and how often; most frequent first."""
        counts = Counter((use.operator, f"{use.source}:{use.rule}") for use in self.rules)
        return [(operator, rule, count) for (operator, rule), count in counts.most_common()]
