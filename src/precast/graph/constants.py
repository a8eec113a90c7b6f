"""Plain values and torch's own as JSON: dtypes, layouts, memory formats and devices by their names."""

from typing import Any

import torch

from precast.artifact.constants import ConstantCodec, Kind


def _by_name(kind: type) -> Kind:
    known = {_name(value): value for value in vars(torch).values() if isinstance(value, kind)}
    return Kind((kind,), _name, known.__getitem__)


def _name(value: Any) -> str:
    return str(value).removeprefix("torch.")


_KINDS = {
    "dtype": _by_name(torch.dtype),
    "layout": _by_name(torch.layout),
    "format": _by_name(torch.memory_format),
    "device": Kind((torch.device,), str, torch.device),
}


def torch_codec(**kinds: Kind) -> ConstantCodec:
    """A codec for torch's values, and for those of further kinds by their tags."""
    return ConstantCodec({**_KINDS, **kinds}, tuples=(tuple, torch.Size))
