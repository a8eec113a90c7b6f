"""Operators for numbers that a counter and a seed determine: where a compiled program's random numbers come from.

A *stream* is two whole numbers: a seed, which a call of a program draws once, and the number of one random operator in
it. It stands where torch's operators for replaying a draw have the state of a generator.
"""

import torch

_library = torch.library.Library("precast", "FRAGMENT")
_library.define("random_seed() -> Tensor", tags=(torch.Tag.nondeterministic_seeded,))
_library.define("random_stream(Tensor seed, int number) -> Tensor")

SEED_LIMIT = 2**63 - 1


def _seed() -> torch.Tensor:
    return torch.randint(SEED_LIMIT, (), device="cpu")


def _stream(seed: torch.Tensor, number: int) -> torch.Tensor:
    return torch.stack([seed, torch.full_like(seed, number)])


_library.impl("random_seed", _seed, "CompositeExplicitAutograd")
_library.impl("random_stream", _stream, "CompositeExplicitAutograd")

random_seed = torch.ops.precast.random_seed.default
"""``random_seed() -> int64 tensor without dimensions``: drawn from torch's generator."""
random_stream = torch.ops.precast.random_stream.default
"""``random_stream(seed, number) -> int64[2]``."""
