"""Quantizes the weights of a model to 8 or 4 bits.

Before: ``Linear(768, 3072)`` with ``weight: f32[3072, 768]``
After:  ``QuantizedLinear`` with ``codes: i8[3072, 768]`` and ``scales: f32[3072, 1]``

The result is a module like any other: it runs in eager torch, and can be compiled, exported, packaged and converted to
ONNX.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import torch
from torch import nn

from precast.errors import InputTypeError, InputValueError, OptionError
from precast.quantize.activations import Activations, DynamicActivations, StaticActivations
from precast.quantize.calibration import largest_inputs
from precast.quantize.codes import Bits, as_codes
from precast.quantize.layers import (
    QuantizedConv,
    QuantizedEmbedding,
    QuantizedLinear,
    QuantizedWeight,
    is_convolution,
    is_embedding,
    is_linear,
    is_transposed_linear,
)

Scheme = Literal["int8", "int4"]
ActivationKind = Literal["dynamic", "static"]
Filter = Callable[[str, nn.Module], bool]
_BITS: dict[str, Bits] = {"int8": 8, "int4": 4}
_GROUP = 64
_LEAST_ELEMENTS = 1024
"""Smaller weights are not worth quantizing."""


def quantize(
    model: nn.Module,
    scheme: Scheme = "int8",
    *,
    group_size: int | None = None,
    symmetric: bool | None = None,
    activations: ActivationKind | None = None,
    calibration: Iterable[Any] | None = None,
    modules: Filter | None = None,
    skip: Sequence[str] = (),
    embeddings: bool = False,
) -> nn.Module:
    """Return a copy of ``model`` with 8-bit or 4-bit weights in its linear layers; other tensors are shared.

    ``int8`` has one scale per row of a weight (or per group, with ``group_size``) and is symmetric around zero;
    ``int4`` has a scale and a zero point per group of ``group_size`` (default 64) neighbouring weights, unless
    ``symmetric``.

    ``activations`` (``int8`` only) also quantizes the inputs of linear layers and convolutions to 8 bits: ``"dynamic"``
    scales by the largest element of each row or image, ``"static"`` by the largest element seen in ``calibration``, a
    sequence of calls, each a tuple of arguments, a dict of keyword arguments, or a single argument.
    ``modules(name, module)`` selects layers; ``skip`` excludes layers by name pattern (``"lm_head"``, ``"*.down"``).
    ``embeddings=True`` quantizes embeddings as well. An embedding that shares its weight with a selected layer shares
    the quantized weight, which then has 8 bits.

    >>> import torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.GELU())
    >>> quantize(model, "int4", group_size=32)[0].quantized
    QuantizedWeight(int4[32, 64], groups of 32, asymmetric)
    """
    _check_model(model)
    _check_options(scheme, group_size, symmetric, activations, calibration)
    quantized = copy.deepcopy(model, _kept_tensors(model))
    kinds = [is_linear, *([is_embedding] if embeddings else []), *([is_convolution] if activations else [])]
    chosen = list(_chosen(quantized, kinds, modules, skip))
    if not chosen:
        raise InputValueError(
            "The model has no layer to quantize.",
            why=f"no linear layer of {_LEAST_ELEMENTS} weights or more was chosen",
            fix="Look at `modules` and `skip`, or leave the model as it is.",
        )
    owners = _owners(quantized, chosen)
    rounded = [name for name, module in owners if activations and not is_embedding(module)]
    largest = {} if calibration is None else largest_inputs(quantized, rounded, calibration)
    writer = _Writer(_BITS[scheme], group_size, symmetric)
    for name, module in owners:
        is_shared = sum(each.weight is module.weight for _, each in owners) > 1
        rounding: Activations | None = None
        if name in largest:
            rounding = StaticActivations(largest[name])
        elif name in rounded:
            rounding = DynamicActivations(is_image=is_convolution(module))
        made = writer.layer(module, rounding, is_shared=is_shared)
        if not name:
            return made
        parent, _, own = name.rpartition(".")
        setattr(quantized.get_submodule(parent), own, made)
    return quantized


def _check_model(model: object) -> None:
    if not isinstance(model, nn.Module):
        raise InputTypeError(
            f"quantize() was given an object of type {type(model).__name__}.",
            why="it replaces layers of a module",
            fix="Pass an nn.Module.",
        )


def _check_options(
    scheme: str, group_size: int | None, symmetric: bool | None, activations: str | None, calibration: object
) -> None:
    if scheme not in _BITS:
        raise OptionError(
            f"There is no scheme {scheme!r}.", why="weights have 8 or 4 bits", fix=f"Pass one of {[*_BITS]}."
        )
    if group_size is not None and (group_size < 32 or group_size % 32):
        raise OptionError(
            f"The group size is {group_size}.", why="groups are multiples of 32", fix="Pass 32, 64, 128 or the like."
        )
    if activations not in (None, "dynamic", "static"):
        raise OptionError(
            f"activations={activations!r}", why="they are rounded by one of two ways", fix="Pass 'dynamic' or 'static'."
        )
    if activations and (scheme != "int8" or group_size is not None or symmetric is False):
        raise OptionError(
            f"activations={activations!r} with other weights than plain int8",
            why="whole numbers are multiplied with weights of 8 bits that have one scale a row and no zero points",
            fix="Pass scheme='int8' without group_size and symmetric, or leave activations out.",
        )
    if (activations == "static") != (calibration is not None):
        raise OptionError(
            f"activations={activations!r} and calibration={'given' if calibration is not None else None}",
            why="static activations are rounded by what example calls show, others by themselves",
            fix="Pass both activations='static' and calibration=[…], or neither.",
        )


def _kept_tensors(model: nn.Module) -> dict[int, object]:
    """A ``deepcopy`` memo with which the copy shares all tensors."""
    return {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}


def _chosen(
    model: nn.Module, kinds: Sequence[Callable[[nn.Module], bool]], modules: Filter | None, skip: Sequence[str]
) -> Iterator[tuple[str, nn.Module]]:
    for name, module in model.named_modules(remove_duplicate=False):
        if not any(is_kind(module) for is_kind in kinds):
            continue
        weight = module.weight
        is_large = isinstance(weight, torch.Tensor) and weight.numel() >= _LEAST_ELEMENTS
        is_wanted = modules is None or modules(name, module)
        if is_large and is_wanted and not any(fnmatchcase(name, pattern) for pattern in skip):
            yield name, module


def _owners(model: nn.Module, chosen: list[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The chosen layers, and embeddings that share a weight with them."""
    weights, names = {id(module.weight) for _, module in chosen}, {name for name, _ in chosen}
    tied = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if is_embedding(module) and id(module.weight) in weights and name not in names
    ]
    return [*chosen, *tied]


class _Writer:
    """Makes quantized layers; a shared weight is quantized once."""

    def __init__(self, bits: Bits, group: int | None, symmetric: bool | None) -> None:
        self.bits, self.group, self.symmetric = bits, group, symmetric
        self.known: dict[int, QuantizedWeight] = {}
        self.layers: dict[int, nn.Module] = {}

    def layer(self, module: nn.Module, activations: Activations | None, *, is_shared: bool) -> nn.Module:
        """The quantized layer that replaces a layer."""
        if id(module) not in self.layers:
            if activations is not None and is_convolution(module):
                made: nn.Module = QuantizedConv(module, activations)
            elif isinstance(module, nn.Embedding):
                made = QuantizedEmbedding(self.weight(module, is_shared=is_shared), module.padding_idx)
            else:
                bias = module.bias if isinstance(module.bias, torch.Tensor) else None
                made = QuantizedLinear(self.weight(module, is_shared=is_shared), bias, activations=activations)
            self.layers[id(module)] = made.train(module.training)
        return self.layers[id(module)]

    def weight(self, module: nn.Module, *, is_shared: bool) -> QuantizedWeight:
        weight = module.weight
        assert isinstance(weight, torch.Tensor), "layers were chosen by their weights"
        if id(weight) not in self.known:
            bits = 8 if is_shared else self.bits
            group = self.group if self.group or bits == 8 else _GROUP
            symmetric = bits == 8 if self.symmetric is None else self.symmetric
            matrix = weight.T if is_transposed_linear(module) else weight
            codes = as_codes(matrix, bits=bits, group=group, symmetric=symmetric)
            self.known[id(weight)] = QuantizedWeight(codes, weight.dtype)
        return self.known[id(weight)]
