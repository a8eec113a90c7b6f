"""Language models as files that generate text without torch."""

from precast.generation.decoder import Decoder
from precast.generation.package import package

__all__ = ["Decoder", "package"]
