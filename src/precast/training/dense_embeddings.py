"""Embeddings whose gradients would be sparse get dense ones: programs compute with dense tensors.

Before: ``torch.embedding(weight, x, padding_idx, scale_grad_by_freq, sparse=True)``
After:  the same with ``sparse=False``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import torch

_PLACES = {"embedding": 4, "embedding_bag": 5}
"""The positions of ``sparse`` among the arguments."""


@contextmanager
def dense_embeddings() -> Iterator[None]:
    """While active, the gradients of all embeddings are dense."""
    with ExitStack() as stack:
        for name, place in _PLACES.items():
            stack.enter_context(patch.object(torch, name, partial(_densely, getattr(torch, name), place)))
        yield


def _densely(embed: Callable[..., Any], place: int, *args: Any, **kwargs: Any) -> Any:
    if "sparse" in kwargs:
        kwargs["sparse"] = False
    return embed(*args[:place], *[False] * (len(args) > place), *args[place + 1 :], **kwargs)
