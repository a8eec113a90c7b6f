"""Tensors in a safetensors file: data only, nothing to execute.

The format: eight bytes with the header's length, a JSON header, then the tensors' bytes. What the format cannot express
(strides, rare dtypes) is in its ``__metadata__``. ``read_tensors`` and ``lay_out`` need only torch and json, since
saved graphs include their source.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from precast.artifact.weights import Block, safetensors_pieces
from precast.errors import InputValueError
from precast.graph.tensor_spec import TORCH_DTYPES

_LAYOUT_NAMES = {dtype: short.upper() for short, dtype in TORCH_DTYPES.items()}
_LAYOUT_NAMES |= {torch.uint64: "U64", torch.uint32: "U32", torch.uint16: "U16"}
_LAYOUT_NAMES |= {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2"}


def write_tensors(path: str | Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write ``tensors`` under their names; values, dtypes, sizes and strides are preserved."""
    notes = {name: json.dumps(_note(tensor)) for name, tensor in tensors.items()}
    blocks = {name: _block(name, tensor) for name, tensor in tensors.items()}
    with open(path, "wb") as file:
        file.writelines(safetensors_pieces(blocks, __metadata__=notes))


def read_tensors(path: str | Path) -> dict[str, torch.Tensor]:
    """Read a file that ``write_tensors`` wrote."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = file.read()
    notes, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        note, (begin, end) = json.loads(notes[name]), entry["data_offsets"]
        dtype = getattr(torch, note["dtype"])
        values = (
            torch.frombuffer(bytearray(data[begin:end]), dtype=dtype) if end > begin else torch.empty(0, dtype=dtype)
        )
        tensors[name] = lay_out(values.view(note["shape"]), note["stride"]).to(note["device"])
    return tensors


def number_as_tensor(number: bool | int | float) -> torch.Tensor:
    """Return a tensor of one element that holds a Python number exactly."""
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def lay_out(values: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """Return a tensor of these values and strides; where a stride is 0, the first value counts."""
    kept = values[tuple(slice(0, 1) if step == 0 else slice(None) for step in stride)]
    return (
        torch.empty_strided(kept.shape, stride, dtype=values.dtype, device=values.device)
        .copy_(kept)
        .expand(values.shape)
    )


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether elements may share memory other than by expanded dimensions."""
    reach = 0
    for step, length in sorted(
        (step, length) for step, length in zip(stride, shape, strict=True) if length > 1 and step
    ):
        if step <= reach:
            return True
        reach += step * (length - 1)
    return False


def _note(tensor: torch.Tensor) -> dict[str, object]:
    strided = tensor.contiguous() if overlaps(tensor.shape, tensor.stride()) else tensor
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "stride": list(strided.stride()),
        "device": str(tensor.device),
    }


def _block(name: str, tensor: torch.Tensor) -> Block:
    if tensor.layout != torch.strided or tensor.is_quantized:
        raise InputValueError(
            f"tensor {name!r} cannot be saved: it is {'quantized' if tensor.is_quantized else tensor.layout}",
            why="the file holds plain strided tensors",
            fix="save it as the plain tensors it is made of",
        )
    plain = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous()
    data = plain.reshape(-1).view(torch.uint8).numpy().data if plain.numel() else b""
    if tensor.dtype in _LAYOUT_NAMES:
        return Block(_LAYOUT_NAMES[tensor.dtype], tensor.shape, data)
    # A dtype without a name in the format is written as bytes.
    return Block("U8", [*tensor.shape, tensor.element_size()], data)
