"""Opens and runs compiled models. Needs numpy; never imports torch.

Names are imported on first access: opening what was compiled in process does not import the code that reads files.
"""

from typing import TYPE_CHECKING

from precast.lazy_names import lazy_name

# Public name → the module that defines it.
_HOMES = {
    "Entry": "precast.runtime.entry",
    "Model": "precast.runtime.model",
    "ModelEntry": "precast.runtime.model",
    "Record": "precast.runtime.trees",
    "Sampling": "precast.runtime.sampling",
    "SampleCheck": "precast.runtime.verification",
    "State": "precast.runtime.state",
    "aot_load": "precast.runtime.model_file",
    "generate": "precast.runtime.generation",
    "load": "precast.runtime.model_file",
    "open_library": "precast.runtime.model",
    "train": "precast.runtime.train_loop",
}

__all__ = [
    "Entry",
    "Model",
    "ModelEntry",
    "Record",
    "SampleCheck",
    "Sampling",
    "State",
    "aot_load",
    "generate",
    "load",
    "open_library",
    "train",
]


def __getattr__(name: str) -> object:
    return lazy_name(__name__, _HOMES, name)


if TYPE_CHECKING:
    from precast.runtime.entry import Entry as Entry
    from precast.runtime.generation import generate as generate
    from precast.runtime.model import Model as Model
    from precast.runtime.model import ModelEntry as ModelEntry
    from precast.runtime.model import open_library as open_library
    from precast.runtime.model_file import aot_load as aot_load
    from precast.runtime.model_file import load as load
    from precast.runtime.sampling import Sampling as Sampling
    from precast.runtime.state import State as State
    from precast.runtime.train_loop import train as train
    from precast.runtime.trees import Record as Record
    from precast.runtime.verification import SampleCheck as SampleCheck
