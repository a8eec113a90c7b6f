"""Packages a language model as one file that generates text without torch.

Before: a causal language model of transformers
After:  a package with two entries over one set of weights, ``prefill`` (several tokens) and ``decode`` (one token),
        whose keys and values are the file's state; ``ends`` returns the tokens that end a text
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import nn

from precast.errors import InputValueError
from precast.generation.decoder import Decoder, EndTokens
from precast.options import Options
from precast.packaging import package as package_entries
from precast.trace.capture import Dim

LEAST_PREFILL = 2
"""The least number of tokens for ``prefill``; fewer go through ``decode``."""


def package(
    model: nn.Module,
    path: str | PathLike[str],
    *,
    max_length: int = 1024,
    batch_size: int = 1,
    targets: Sequence[str] = ("native",),
    options: Options | Mapping[str, Any] | None = None,
) -> Path:
    """Write a causal language model of transformers as a file that ``precast generate`` runs; returns the path.

    The file has room for ``max_length`` tokens, prompt included, in each of ``batch_size`` rows.
    """
    longest = getattr(getattr(model, "config", None), "max_position_embeddings", None)
    if max_length <= LEAST_PREFILL or (isinstance(longest, int) and max_length > longest):
        raise InputValueError(
            f"max_length is {max_length}.",
            why=f"it holds prompt and result, and the model takes {longest or 'any number of'} tokens",
            fix=f"Pass a number from {LEAST_PREFILL + 1} on, up to what the model takes.",
        )
    decoder = Decoder(model.eval(), max_length=max_length, batch_size=batch_size).eval()
    decoder.check()
    prompt = torch.zeros(batch_size, min(8, max_length), dtype=torch.int64)
    starts = torch.zeros(batch_size, dtype=torch.int64)
    tokens = Dim("tokens", min=LEAST_PREFILL, max=max_length)
    with torch.no_grad():
        return package_entries(
            {
                "prefill": (decoder, (prompt, starts), {}, ({1: tokens}, None)),
                "decode": (decoder, (prompt[:, :1],)),
                "ends": (EndTokens(model), ()),
            },
            path=path,
            targets=targets,
            samples=False,
            options=options,
        )
