"""Philox 4x32-10 on whole arrays: the same bits as ``random_bits`` of the generated code."""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def random_bits(seed: torch.Tensor, number: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
    """64 random bits for each element of the three arrays, which are broadcast together."""
    (a, b), (c, d), (first_key, second_key) = map(_words, (place, number, seed))
    for _ in range(_ROUNDS):
        # A product of two words wraps in 64 signed bits, and its halves are still right.
        (low_left, high_left), (low_right, high_right) = _words(a * _MULTIPLIERS[0]), _words(c * _MULTIPLIERS[1])
        a, b, c, d = high_right ^ b ^ first_key, low_right, high_left ^ d ^ second_key, low_left
        first_key, second_key = (first_key + _KEY_STEPS[0]) & _WORD, (second_key + _KEY_STEPS[1]) & _WORD
    return a | (b << 32)


def _words(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high 32 bits."""
    return value & _WORD, (value >> 32) & _WORD
