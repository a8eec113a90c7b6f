"""The metadata of a saved graph's inputs, as JSON, and random inputs that match it."""

import json
import random
from collections.abc import Sequence
from pathlib import Path

import torch

from precast.debug.tensor_file import lay_out, overlaps
from precast.errors import InputTypeError, InputValueError

INPUTS_FILE = "inputs.json"

# The assumed value of a data-dependent size.
_UNKNOWN_SIZE = 4
# Integers are often indices into small tensors.
_INTEGER_LIMIT = 4

InputMetadata = dict[str, object]


def write_input_metadata(path: Path, names: Sequence[str], inputs: Sequence[object]) -> None:
    """Write the metadata from which get_inputs makes inputs like these."""
    described = [{"name": name, **describe_input(value)} for name, value in zip(names, inputs, strict=True)]
    path.write_text(json.dumps({"version": 1, "inputs": described}, indent=1) + "\n")


def read_input_metadata(path: str | Path) -> list[InputMetadata]:
    """Read the metadata file of a saved graph, given the file or the graph's folder."""
    path = Path(path)
    if path.is_dir():
        path = path / INPUTS_FILE
    try:
        inputs: list[InputMetadata] = json.loads(path.read_text())["inputs"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise InputValueError(
            f"{path} is not a metadata file of inputs: {error!r}",
            why="it was not written by graph_dumper_aot or debug_compile, or is damaged",
            fix=f"pass the {INPUTS_FILE} of a saved graph, or its folder",
        ) from error
    return inputs


def describe_input(value: object) -> InputMetadata:
    """Return type, shape, stride, dtype and device of a tensor; only the type of a Python number."""
    if isinstance(value, torch.Tensor):
        described: InputMetadata = {
            "type": "Tensor",
            "shape": [number_of(size) for size in value.shape],
            "stride": [number_of(step) for step in value.stride()],
            "dtype": str(value.dtype).removeprefix("torch."),
            "device": str(value.device),
        }
        if any(isinstance(size, torch.SymInt) for size in value.shape):
            described["symbolic_shape"] = [str(size) for size in value.shape]
        return described
    if isinstance(value, torch.SymInt):
        return {"type": "SymInt", "expression": str(value), "value": number_of(value)}
    if value is None or isinstance(value, bool | int | float):
        return {"type": type(value).__name__}
    raise InputTypeError(
        f"an input of type {type(value).__name__} cannot be described",
        why="graphs take tensors and numbers",
        fix="pass the tensors and numbers that it holds",
    )


def number_of(size: int | torch.SymInt) -> int:
    """Return a size's number; for a symbolic one, its hint."""
    if isinstance(size, int):
        return size
    return int(size.node.hint) if size.node.has_hint() else _UNKNOWN_SIZE


def get_inputs(path: str | Path) -> list[object]:
    """Return random inputs that fit the metadata in ``path``, a file or the folder of a saved graph."""
    return [_random_input(metadata) for metadata in read_input_metadata(path)]


def random_input_like(value: object) -> object:
    """Return a random input of the type, shape, stride, dtype and device of ``value``."""
    return _random_input(describe_input(value))


def _random_input(metadata: InputMetadata) -> object:
    kind = metadata["type"]
    if kind == "Tensor":
        return _random_tensor(metadata)
    numbers: dict[object, object] = {
        "int": random.randrange(_INTEGER_LIMIT),
        "float": random.random(),
        "bool": random.random() < 0.5,
        "NoneType": None,
        "SymInt": metadata.get("value"),
    }
    return numbers[kind]


def _random_tensor(metadata: InputMetadata) -> torch.Tensor:
    shape, stride = metadata["shape"], metadata["stride"]
    assert isinstance(shape, list)
    assert isinstance(stride, list)
    values = _random_values(shape, getattr(torch, str(metadata["dtype"])))
    laid_out = values if overlaps(shape, stride) else lay_out(values, stride)
    return laid_out.to(str(metadata["device"]))


def _random_values(shape: list[int], dtype: torch.dtype) -> torch.Tensor:
    if dtype == torch.bool:
        count = torch.Size(shape).numel()
        return (torch.randperm(count) % 2 == 0).view(shape)  # both values, as soon as there is room for both
    if dtype.is_complex:
        return torch.rand(shape, dtype=dtype)
    if dtype.is_floating_point:
        return torch.rand(shape).to(dtype)  # no generator draws float8 itself
    return torch.randint(_INTEGER_LIMIT, shape).to(dtype)
