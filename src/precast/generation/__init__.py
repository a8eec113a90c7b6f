"""Packages language models as files that generate text without torch."""

from precast.lazy_names import naming_extras

with naming_extras("precast.generation"):
    from precast.generation.decoder import Decoder
    from precast.generation.package import package

__all__ = ["Decoder", "package"]
