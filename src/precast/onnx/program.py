"""The exported model as an object: to inspect, save, run, and feed as the original was called."""

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import torch

from precast.errors import OnnxError
from precast.onnx.attach import attach
from precast.onnx.input_adapter import InputAdapter
from precast.onnx.output_adapter import OutputAdapter
from precast.onnx.save import ExternalData, save_model
from precast.onnx.session import IN_MEMORY_LIMIT, Session, weight_bytes
from precast.onnx.translate import RuleUse
from precast.onnx.verify import Verification
from precast.onnx.weights import missing_in, missing_weights


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
