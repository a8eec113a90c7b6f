"""Opens and runs models in onnxruntime."""

import ctypes
import math
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import onnx
import onnx_ir as ir
import torch

from precast.cache.partial import scratch_folder
from precast.errors import OnnxError, ToolMissingError
from precast.onnx.element_types import data_type_of, dtype_of
from precast.onnx.optimize import make_names_unique, renumber
from precast.onnx.weights import TorchWeight, missing_in, missing_weights
from precast.onnx.widen import narrowed, of_doubles, widened

IN_MEMORY_LIMIT = 1_500_000_000
"""Bytes of weights above which a model is passed as files: protobuf is limited to 2 GB."""


def weight_bytes(model: ir.Model) -> int:
    """The size of all initializers."""
    tensors = (value.const_value for value in model.graph.initializers.values())
    return sum(tensor.nbytes for tensor in tensors if tensor is not None)


_UNSUPPORTED = "data type is not supported|does not support double"


class SessionError(OnnxError):
    """onnxruntime refuses a model."""


class MissingKernelError(SessionError):
    """onnxruntime has no kernel for an operator on these types: the model may still be correct."""

    @property
    def operator(self) -> str | None:
        """The kind of operator, as far as onnxruntime's message names it."""
        found = re.search(r"(?:implementation for|while running) (\w+)", self.why)
        return found[1] if found else None


class Session:
    """A model ready to run on the CPU, converted to the newest opset that onnxruntime supports if it is newer."""

    def __init__(self, model: ir.Model, initializer: Callable[[str | bytes], Any] | None = None) -> None:
        if missing := missing_in(model):
            raise missing_weights(missing)
        self._input_names = [str(value.name) for value in model.graph.inputs]
        self._model = readable(model)
        self.is_widened = False
        """Whether the runtime lacks code for some types, and computes with wider ones."""
        self.narrowed: frozenset[str] = frozenset()
        """The operators for which the runtime lacks code for float64, and that compute in float32."""
        try:
            self._session = _open(self._model, initializer)
        except MissingKernelError as error:
            if initializer is not None:
                raise
            self._adapt(error)
        self._used = {argument.name for argument in self._session.get_inputs()}

    def _adapt(self, error: MissingKernelError) -> None:
        """Open a copy that computes in types for which there is code, one lack after the other."""
        if error.operator and (lacking := of_doubles(self._model, error.operator, self.narrowed)):
            self.narrowed |= lacking
        elif not self.is_widened:
            self.is_widened = True
        else:
            raise error
        model = widened(self._model) if self.is_widened else self._model
        model = narrowed(model, self.narrowed)
        make_names_unique(model)
        try:
            self._session = _open(model)
        except MissingKernelError as further:
            self._adapt(further)

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run the model; returns all outputs in order."""
        feed = {
            name: _handed_over(tensor)
            for name, tensor in zip(self._input_names, inputs, strict=True)
            if name in self._used
        }
        while True:
            try:
                return self._run(feed)
            except MissingKernelError as error:
                self._adapt(error)

    def _run(self, feed: dict[str, Any]) -> list[torch.Tensor]:
        with _explained("onnxruntime fails while running the model."):
            return [_taken_back(value) for value in self._session.run_with_ort_values(None, feed)]


def readable(model: ir.Model) -> ir.Model:
    """The model, or its copy for the newest opset that onnxruntime supports."""
    if model.opset_imports[""] <= (newest := newest_readable_opset()):
        return model
    copy = model.clone()
    renumber(copy, newest)
    return copy


@cache
def newest_readable_opset() -> int:
    """The newest opset that onnxruntime supports, found by trial."""
    opset = onnx.defs.onnx_opset_version()
    while not _reads(opset):
        opset -= 1
    return opset


def _reads(opset: int) -> bool:
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Identity", ["x"], ["y"])], "probe", [value], [result])
    version = onnx.helper.OP_SET_ID_VERSION_MAP["ai.onnx", opset]
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=version)
    try:
        _open(ir.from_proto(model))
    except SessionError:
        return False
    return True


def _open(model: ir.Model, initializer: Callable[[str | bytes], Any] | None = None) -> Any:
    open_session = initializer or _on_the_cpu
    with _explained("onnxruntime does not accept the model."):
        if weight_bytes(model) < IN_MEMORY_LIMIT:
            return open_session(ir.to_proto(model).SerializeToString())
        with scratch_folder() as folder:
            path = folder / "model.onnx"
            ir.save(model, path, external_data="model.onnx.data")
            return open_session(str(path))


def _on_the_cpu(source: str | bytes) -> Any:
    runtime = import_onnxruntime()
    options = runtime.SessionOptions()
    # Warnings about initializers that a fused pattern no longer needs would be a false alarm.
    options.log_severity_level = 3
    return runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Report onnxruntime's errors, which have no common base class."""
    failures = import_onnxruntime().capi.onnxruntime_pybind11_state
    known = (failures.InvalidGraph, failures.Fail, failures.InvalidArgument, failures.NotImplemented)
    try:
        yield
    except (*known, failures.RuntimeException, RuntimeError) as error:
        # Some kernels report an unsupported type only when they run.
        is_missing = isinstance(error, failures.NotImplemented) or re.search(_UNSUPPORTED, str(error))
        kind = MissingKernelError if is_missing else SessionError
        raise kind(
            what,
            why=str(error),
            fix="Export with another opset, give other rules in custom_translation_table, or pass verify=False.",
        ) from error


def import_onnxruntime() -> Any:
    """The onnxruntime package, or an error that says how to install it."""
    try:
        import onnxruntime  # type: ignore[import-untyped]
    except ImportError:
        raise ToolMissingError(
            "onnxruntime is not installed.",
            why="ONNX models run in it",
            fix="Install onnxruntime, or do without running: save() needs no runtime.",
        ) from None
    return onnxruntime


def has_onnxruntime() -> bool:
    """Whether models can be run here."""
    try:
        import_onnxruntime()
    except ToolMissingError:
        return False
    return True


def as_array(tensor: torch.Tensor) -> Any:
    """A tensor as a numpy array; types that numpy lacks have the names of extension types."""
    return TorchWeight(tensor, "input").numpy()


def as_torch(array: Any) -> torch.Tensor:
    """An array as a tensor."""
    if array.dtype.isbuiltin == 1:
        return torch.as_tensor(array)
    dtype = dtype_of(ir.DataType.from_numpy(array.dtype))
    return torch.as_tensor(array.view(f"u{array.itemsize}")).view(dtype)


def _handed_over(tensor: torch.Tensor) -> Any:
    """A tensor as onnxruntime accepts it; types that numpy lacks are passed as bits."""
    values = import_onnxruntime().OrtValue
    tensor = tensor.detach().cpu().contiguous()
    data_type = data_type_of(tensor.dtype, what="A tensor for onnxruntime")
    if data_type.numpy().isbuiltin == 1:
        return values.ortvalue_from_numpy(tensor.numpy())
    carrier = torch.uint8 if tensor.element_size() == 1 else torch.uint16
    return values.ortvalue_from_numpy_with_onnx_type(tensor.view(carrier).numpy(), int(data_type))


def _taken_back(value: Any) -> torch.Tensor:
    data_type = ir.DataType(value.element_type())
    if data_type.numpy().isbuiltin == 1:
        return torch.as_tensor(value.numpy())
    # Read as raw memory, since numpy has no such type; torch counts two numbers in a byte as one.
    shape, dtype = list(value.shape()), dtype_of(data_type)
    if data_type.bitwidth == 4:
        shape[-1] //= 2
    count = math.prod(shape) * dtype.itemsize
    memory = (ctypes.c_uint8 * count).from_address(value.data_ptr())
    return torch.frombuffer(bytearray(memory), dtype=torch.uint8).view(dtype).reshape(shape)
