"""Opens and runs compiled models. Needs numpy; never imports torch."""

from precast.runtime.aot_load import aot_load
from precast.runtime.load import load
from precast.runtime.model import Entry, Model, ModelEntry, open_library
from precast.runtime.state import State
from precast.runtime.trees import Record
from precast.runtime.verification import SampleCheck

__all__ = ["Entry", "Model", "ModelEntry", "Record", "SampleCheck", "State", "aot_load", "load", "open_library"]
