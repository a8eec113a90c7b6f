"""Selects the next token from logits: the likeliest, or one drawn at random."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from precast.errors import OptionError
from precast.runtime.tensors import Array


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest one, or sampled if there is a temperature.

    ``top_k`` samples from the k likeliest tokens, ``top_p`` from the smallest set of likeliest tokens that reaches this
    probability. ``seed`` makes sampling repeatable.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        is_valid = (
            0 <= self.temperature < float("inf")
            and (self.top_k is None or self.top_k >= 1)
            and (self.top_p is None or 0 < self.top_p <= 1)
        )
        if not is_valid:
            raise OptionError(
                f"temperature={self.temperature}, top_k={self.top_k}, top_p={self.top_p}",
                why="a temperature is 0 or more, top_k 1 or more, top_p more than 0 and at most 1",
                fix="Leave out what you do not need.",
            )

    def generator(self) -> np.random.Generator:
        return np.random.default_rng(self.seed)


def choose(logits: Array, sampling: Sampling, generator: np.random.Generator) -> Array:
    """A token for each row of logits."""
    if not sampling.temperature:
        return np.asarray(logits.argmax(-1))
    return np.array([_drawn(row / np.float32(sampling.temperature), sampling, generator) for row in logits])


def _drawn(logits: Array, sampling: Sampling, generator: np.random.Generator) -> int:
    kept = np.arange(logits.size)
    if sampling.top_k is not None and sampling.top_k < logits.size:
        kept = np.argpartition(logits, -sampling.top_k)[-sampling.top_k :]
    kept = kept[np.argsort(-logits[kept], kind="stable")]
    powers = np.exp((logits[kept] - logits[kept[0]]).astype(np.float64))
    sums = np.cumsum(powers) / powers.sum()
    if sampling.top_p is not None:
        # Up to the first token that reaches the probability.
        sums = sums[: int(np.searchsorted(sums, sampling.top_p)) + 1]
    return int(kept[min(int(np.searchsorted(sums, generator.random() * sums[-1], side="right")), sums.size - 1)])
