"""A causal language model of transformers with a static key-value cache in buffers.

Before: ``model(ids, past_key_values=cache)``, where the cache grows with every token
After:  ``decoder(ids)``; buffers ``keys_0``, ``values_0``, … have room for the maximum number of tokens, and
        ``position`` is the current number. All of them are state of the module, updated in place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers.cache_utils import Cache, DynamicCache, StaticLayer

from precast.errors import InputTypeError, InputValueError

Tensor = torch.Tensor


class Decoder(nn.Module):
    """A language model with a key-value cache: ``decoder(ids)`` appends tokens and returns the logits of the next one.

    ``starts``, passed with the first tokens, is the number of padding tokens on the left of each row.
    """

    position: Tensor
    starts: Tensor

    def __init__(self, model: nn.Module, *, max_length: int, batch_size: int = 1) -> None:
        super().__init__()
        self.model, self.max_length, self.batch_size = model, max_length, batch_size
        shapes = _cache_shapes(model, batch_size)
        self.depth = len(shapes)
        for number, (key, value) in enumerate(shapes):
            for name, like in (("keys", key), ("values", value)):
                sizes = (batch_size, like.shape[1], max_length, like.shape[3])
                self.register_buffer(f"{name}_{number}", like.new_zeros(sizes), persistent=False)
        self.register_buffer("position", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("starts", torch.zeros(batch_size, dtype=torch.int64), persistent=False)

    def forward(self, ids: Tensor, starts: Tensor | None = None) -> Tensor:
        if starts is not None:
            self.starts.copy_(starts)
        slots = torch.arange(self.max_length)
        places = torch.arange(ids.shape[1]) + self.position
        result: Any = self.model(
            input_ids=ids,
            past_key_values=Cache(layers=[self._layer(number) for number in range(self.depth)]),
            attention_mask=slots >= self.starts[:, None],
            position_ids=(places - self.starts[:, None]).clamp(min=0),
            use_cache=True,
            logits_to_keep=1,
        )
        self.position.add_(ids.shape[1])
        logits: Tensor = result.logits[:, -1]
        return logits.float()

    def _layer(self, number: int) -> Any:
        """One layer of the cache, over this module's buffers."""
        layer: Any = StaticLayer(max_cache_len=self.max_length)
        layer.keys, layer.values = getattr(self, f"keys_{number}"), getattr(self, f"values_{number}")
        layer.dtype, layer.device = layer.keys.dtype, layer.keys.device
        layer.is_initialized = True
        # Every layer has its own counter.
        layer.cumulative_length = self.position.clone()
        return layer

    def check(self) -> None:
        """Refuse models whose logits differ from those without a cache: not all are written for one of fixed size."""
        count = min(_CHECKED_TOKENS, self.max_length)
        # The first row has no padding.
        starts = torch.arange(self.batch_size) % (count - 2)
        ids = torch.randint(0, _vocabulary(self.model), (self.batch_size, count), generator=torch.Generator())
        with torch.no_grad():
            found = (self(ids[:, :-1], starts), self(ids[:, -1:]))
            expected = tuple(self._logits_without_cache(ids[:, :stop], starts) for stop in (count - 1, count))
        is_exact = all(each.dtype in (torch.float32, torch.float64) for each in self.model.parameters())
        limit = _ALLOWED_ERROR if is_exact else 10 * _ALLOWED_ERROR
        for mine, theirs in zip(found, expected, strict=True):
            if not float((mine - theirs).abs().max()) <= limit * float(theirs.abs().max()):
                raise InputValueError(
                    f"{type(self.model).__name__} computes other logits with a key-value cache of fixed size.",
                    why="its attention takes the cache's end for the last token, or it keeps state of another kind",
                    fix="Package its forward with precast.package, with the cache as an argument.",
                )
        for buffer in self.buffers(recurse=False):
            buffer.zero_()

    def _logits_without_cache(self, ids: Tensor, starts: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1]) - starts[:, None]
        result: Any = self.model(
            input_ids=ids, attention_mask=places >= 0, position_ids=places.clamp(min=0), use_cache=False
        )
        logits: Tensor = result.logits[:, -1]
        return logits.float()


_CHECKED_TOKENS = 7
_ALLOWED_ERROR = 1e-2
"""Relative to the largest logit, in single precision; quantized activations and short types err more than rounding."""


def _vocabulary(model: nn.Module) -> int:
    embedded: Any = getattr(model, "get_input_embeddings", lambda: None)()
    weight = getattr(embedded, "weight", None)
    return 2 if weight is None else int(weight.shape[0])


class EndTokens(nn.Module):
    """``ends()`` → the tokens that end a text."""

    tokens: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        configurations = (getattr(model, "generation_config", None), getattr(model, "config", None))
        found = next((each for each in map(_end_tokens, configurations) if each), [])
        self.register_buffer("tokens", torch.tensor(found, dtype=torch.int64))

    def forward(self) -> Tensor:
        return self.tokens.clone()


def _end_tokens(configuration: object) -> list[int]:
    found = getattr(configuration, "eos_token_id", None)
    return [] if found is None else [int(found)] if isinstance(found, int) else [int(each) for each in found]


def _cache_shapes(model: nn.Module, batch_size: int) -> list[tuple[Tensor, Tensor]]:
    """Each layer's key and value for one token, found by running the model: configurations vary in names."""
    config = getattr(model, "config", None)
    if config is None or not hasattr(model, "generate") or getattr(config, "is_encoder_decoder", False):
        raise InputTypeError(
            f"{type(model).__name__} is not a language model of transformers.",
            why="generating packages are made of decoders that take input_ids and past_key_values",
            fix="Pass a model like transformers.AutoModelForCausalLM's.",
        )
    cache = DynamicCache(config=config)
    with torch.no_grad():
        model(input_ids=torch.zeros(batch_size, 1, dtype=torch.int64), past_key_values=cache, use_cache=True)
    found = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
    shapes = [(key, value) for key, value in found if isinstance(key, Tensor) and isinstance(value, Tensor)]
    if len(shapes) != len(found) or any(key.ndim != 4 or value.ndim != 4 for key, value in shapes):
        raise InputValueError(
            f"{type(model).__name__} keeps something else than keys and values of every token.",
            why="models with recurrent or compressed states have caches of their own kind",
            fix="Package its forward with precast.package, with the cache as an argument.",
        )
    return shapes
