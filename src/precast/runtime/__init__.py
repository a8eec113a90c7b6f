"""Opens and runs compiled models. Needs numpy; never imports torch."""

from precast.runtime.load import load
from precast.runtime.model import Entry, Model, open_library

__all__ = ["Entry", "Model", "load", "open_library"]
