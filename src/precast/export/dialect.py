"""The two forms of an exported program."""

from enum import Enum


class Dialect(Enum):
    """``TRAINING``: whole ops from before autograd, can be trained on. ``ATEN``: taken apart into simpler ops."""

    TRAINING = "TRAINING"
    ATEN = "ATEN"

    def __str__(self) -> str:
        return self.value
