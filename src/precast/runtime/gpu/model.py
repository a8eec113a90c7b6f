"""A model on a GPU: weights are copied there once, entries are called with arrays in host or GPU memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from precast.artifact.dtypes import DTYPES, SHORT_NAMES
from precast.artifact.gpu_code import GpuCodeEntry, PackedGpuCode
from precast.artifact.manifest import EntryDescription
from precast.artifact.package import WEIGHTS, Package
from precast.artifact.schema import damaged
from precast.artifact.weights import Weight, weight_carrier
from precast.errors import InputValueError
from precast.runtime.gpu.arrays import DeviceArray, borrowed, handed_over
from precast.runtime.gpu.bound import BoundProgram, Layout
from precast.runtime.gpu.device import Gpu
from precast.runtime.gpu.execute import ProgramCall
from precast.runtime.gpu.operations import GpuOperations
from precast.runtime.tensors import (
    Tensor,
    are_bits,
    as_in_memory,
    as_tensor,
    is_bfloat16,
    is_on_gpu,
    is_torch_tensor,
    type_name,
    without_bits,
)

MOST_SIZES = 64
"""The number of different sizes for which an entry memoizes its bound program."""
_PAIRS = {"c64": "f32", "c128": "f64"}
"""The type of a complex number's parts."""


class OpenGpuModel:
    """Code and weights of one model on one GPU."""

    def __init__(self, gpu: Gpu, code: PackedGpuCode, package: Package):
        self.gpu, self.operations = gpu, GpuOperations(gpu, code)
        # This validates that every tensor is inside its storage.
        package.state()
        with gpu.lock, gpu:
            self.operations.load_all()
            self.state = dict(_uploaded(self.operations, package))
            gpu.synchronize()

    def names(self) -> tuple[str, ...]:
        return tuple(self.state)

    def read(self, name: str) -> Weight:
        return self.state[name].weight()

    def write(self, name: str, value: Tensor) -> None:
        state, new = self.state[name], host_weight(value)
        if (new.dtype, new.carrier.shape) != (state.dtype, state.shape):
            raise InputValueError(
                f"{name!r} cannot become {new.dtype}{list(new.carrier.shape)}.",
                why=f"it is {state.dtype}{list(state.shape)}",
                fix="Write a tensor of that dtype and shape.",
            )
        with self.gpu.lock, self.gpu:
            self.operations.fill(state, new.carrier)


def _uploaded(operations: GpuOperations, package: Package) -> Mapping[str, DeviceArray]:
    """The state by name; aliases remain aliases."""
    stored, homes = package.tensors(WEIGHTS), dict[str, DeviceArray]()
    found = {}
    for name, record in package.manifest.state.items():
        if record.storage not in homes:
            flat = np.ascontiguousarray(stored[record.storage].carrier).reshape(-1).view(np.uint8)
            layout = Layout("state", 0, "u8", flat.shape, (1,))
            homes[record.storage] = operations.empty(layout)
            operations.gpu.upload(homes[record.storage].address, flat)
        home = homes[record.storage]
        address = home.address + record.offset * DTYPES[record.dtype].item_size
        found[name] = DeviceArray(home.gpu, home, address, record.dtype, record.shape, record.strides)
    return found


@dataclass(frozen=True, repr=False)
class GpuEntry:
    """One program, called with flat arrays: arrays on the GPU stay there, and results go where arguments were."""

    on_gpu: ClassVar[bool] = True
    model: OpenGpuModel
    code: GpuCodeEntry
    description: EntryDescription
    _bounds: dict[tuple[int, ...], BoundProgram] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.description.name

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(map(str, each)) for each in (self.description.inputs, self.description.outputs))
        return f"{self.name}({inputs}) -> ({outputs})"

    def __call__(self, *arguments: object) -> tuple[Any, ...]:
        expected = self.description.inputs
        if len(arguments) != len(expected):
            raise InputValueError(
                f"entry {self.name!r} takes {len(expected)} tensors, got {len(arguments)}",
                why=f"its inputs are {', '.join(each.name for each in expected) or 'none'}",
                fix="pass one tensor for each, in this order",
            )
        tensors: list[Any] = [
            value if is_on_gpu(value) else as_in_memory(as_tensor(value, name=each.name))
            for value, each in zip(arguments, expected, strict=True)
        ]
        return self.run(tensors, like_torch=any(map(is_torch_tensor, tensors)))

    def run(self, tensors: Sequence[Any], *, like_torch: bool) -> tuple[Any, ...]:
        """Results on the GPU, in the library of the first array there; without one, on the host."""
        given = [each if is_on_gpu(each) else host_weight(each) for each in tensors]
        results = self.run_on_gpu(given)
        first = next((each for each in tensors if is_on_gpu(each)), None)
        if first is not None:
            return tuple(handed_over(each, first) for each in results)
        weights = [each.weight() for each in results]
        if like_torch:
            return tuple(map(_as_torch, weights))
        as_bits = are_bits(tensors)
        return tuple(without_bits(each if each.dtype == "bf16" else each.carrier, as_bits=as_bits) for each in weights)

    def run_bits(self, tensors: Sequence[Weight]) -> tuple[Weight, ...]:
        """Call with tensors as their bits, and return them so."""
        return tuple(each.weight() for each in self.run_on_gpu(tensors))

    def run_on_gpu(self, given: Sequence[Any]) -> tuple[DeviceArray, ...]:
        """Results on the GPU, perhaps not yet computed; state updates are ordered the same way."""
        model = self.model
        with model.gpu.lock, model.gpu:
            taken = [self._taken(each) for each in given]
            passed = iter(taken)
            program = self.code.program
            inputs = [next(passed) if name is None else self._taken(model.state[name]) for name in program.weights]
            results = ProgramCall(model.operations, self._bound(inputs), inputs).run()
            updates = {number: name for name, number in self.code.updates.items()}
            for number, name in updates.items():
                model.operations.copy(model.state[name], results[number])
            lent = [each.owner for each in taken if isinstance(each, DeviceArray)]
            if lent:
                model.gpu.hold(lent)
        kept = [each for number, each in enumerate(results) if number not in updates]
        return tuple(
            _as_complex(each) if described.dtype in _PAIRS else each
            for each, described in zip(kept, self.description.outputs, strict=True)
        )

    def _taken(self, value: Any) -> Any:
        """A value in the form of programs: complex numbers are pairs."""
        if isinstance(value, Weight):
            return _paired(value) if value.dtype in _PAIRS else value
        array = borrowed(value, self.model.gpu)
        if array.dtype not in _PAIRS:
            return array
        strides = (*(2 * each for each in array.strides), 1)
        return replace(array, dtype=_PAIRS[array.dtype], shape=(*array.shape, 2), strides=strides)

    def _bound(self, inputs: Sequence[Any]) -> BoundProgram:
        sizes = {each.symbol: _size(inputs[each.position], each.dimension, each.factor, each.offset)
                 for each in self.code.program.sizes}  # fmt: skip
        key = tuple(sizes.values())
        if key not in self._bounds:
            while len(self._bounds) >= MOST_SIZES:
                del self._bounds[next(iter(self._bounds))]
            self._bounds[key] = BoundProgram(self.code.program, sizes)
        return self._bounds[key]


def _size(value: Any, dimension: int | None, factor: int, offset: int) -> int:
    carrier = value.carrier if isinstance(value, Weight) else value
    number = int(carrier) if dimension is None else carrier.shape[dimension]
    return int(number - offset) // factor


def _as_complex(array: DeviceArray) -> DeviceArray:
    dtype = next(name for name, part in _PAIRS.items() if part == array.dtype)
    if array.shape[-1:] != (2,) or array.strides[-1] != 1 or any(each % 2 for each in array.strides[:-1]):
        raise damaged("complex numbers are not where they should be", f"they are {array}")
    strides = tuple(each // 2 for each in array.strides[:-1])
    return replace(array, dtype=dtype, shape=array.shape[:-1], strides=strides)


def _paired(value: Weight) -> Weight:
    part = _PAIRS[value.dtype]
    flat = np.ascontiguousarray(value.carrier).reshape(-1).view(weight_carrier(part))
    return Weight(part, flat.reshape(*value.carrier.shape, 2))


def host_weight(value: Any) -> Weight:
    """A tensor in host memory as its bits."""
    if isinstance(value, Weight):
        return value
    if is_torch_tensor(value):
        torch, tensor = sys.modules["torch"], value.detach()
        if tensor.dtype == torch.bfloat16:
            return Weight("bf16", tensor.view(torch.int16).numpy().view(np.uint16))
        return Weight(SHORT_NAMES[type_name(tensor.dtype)], tensor.numpy())
    if is_bfloat16(value):
        return Weight("bf16", value.view(np.uint16))
    return Weight(SHORT_NAMES[type_name(value.dtype)], value)


def _as_torch(weight: Weight) -> Any:
    torch: Any = sys.modules["torch"]
    carrier = np.ascontiguousarray(weight.carrier).reshape(weight.carrier.shape)
    if weight.dtype == "bf16":
        return torch.from_numpy(carrier.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(carrier)
