"""Generates text token by token: runs the result of ``precast.generation.package``, without torch."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from precast.errors import InputValueError
from precast.runtime.model import Model, ModelEntry
from precast.runtime.sampling import Sampling, choose
from precast.runtime.tensors import Array

PREFILL, DECODE, ENDS, POSITION, KEYS = "prefill", "decode", "ends", "position", "keys_0"


def generate(
    model: Model,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int,
    sampling: Sampling | None = None,
    ends: Collection[int] | None = None,
) -> Iterator[tuple[int | None, ...]]:
    """Generate tokens after each prompt: yields one token per row at a time, None for rows that have ended.

    A row ends at a token in ``ends`` (by default the model's own). There may be as many prompts as the file has rows.
    """
    entry = _decoding(model)
    rows = _rows(entry)
    ids, starts = _padded(prompts, rows)
    room = _room(entry) - ids.shape[1]
    if room < 1:
        raise InputValueError(
            f"The prompt has {ids.shape[1]} tokens.",
            why=f"the file has room for {_room(entry)}, result included",
            fix="Shorten it, or package the model with a larger max_length.",
        )
    sampling = sampling or Sampling()
    stops = set(np.asarray(model[ENDS]()).tolist() if ends is None else ends)
    model.state[POSITION] = np.zeros((), np.int64)
    generator, is_over = sampling.generator(), [False] * len(prompts)
    logits = _filled(model, ids, starts)
    for number in range(min(max_new_tokens, room + 1)):
        tokens = choose(logits, sampling, generator)
        yield tuple(None if over else int(token) for over, token in zip(is_over, tokens, strict=False))
        is_over = [over or int(token) in stops for over, token in zip(is_over, tokens, strict=False)]
        if all(is_over) or number == room:
            return
        logits = np.asarray(model[DECODE](tokens[:, None]))


def _filled(model: Model, ids: Array, starts: Array) -> Array:
    """The logits after the prompts."""
    if ids.shape[1] > 1:
        return np.asarray(model[PREFILL](ids, starts))
    # A single token is what the decode entry takes; rows have no padding then.
    model.state["starts"] = starts
    return np.asarray(model[DECODE](ids))


def _decoding(model: Model) -> ModelEntry:
    is_made_for_it = {PREFILL, DECODE} <= set(model) and POSITION in model.state
    if not is_made_for_it or not isinstance(entry := model[DECODE], ModelEntry):
        raise InputValueError(
            "The file does not generate text.",
            why=f"it has no entries {PREFILL!r} and {DECODE!r} over a cache",
            fix="Make one with precast.generation.package.",
        )
    return entry


def _rows(entry: ModelEntry) -> int:
    return int(entry.description.inputs[0].shape[0])


def _room(entry: ModelEntry) -> int:
    """The number of tokens that the cache can hold."""
    keys = next(each for each in entry.description.weights if each.name == KEYS)
    return int(keys.shape[2])


def _padded(prompts: Sequence[Sequence[int]], rows: int) -> tuple[Array, Array]:
    """The prompts as one left-padded batch, with the padding of each row; the last prompt fills unused rows."""
    if not prompts or len(prompts) > rows or not all(prompts):
        raise InputValueError(
            f"There are {len(prompts)} prompts.",
            why=f"the file was made for up to {rows}, each of one token or more",
            fix="Give them in several calls, or package the model with another batch_size.",
        )
    every = [*prompts, *[prompts[-1]] * (rows - len(prompts))]
    length = max(map(len, every))
    ids, starts = np.zeros((rows, length), np.int64), np.zeros(rows, np.int64)
    for row, prompt in enumerate(every):
        starts[row] = length - len(prompt)
        ids[row, starts[row] :] = prompt
    return ids, starts
