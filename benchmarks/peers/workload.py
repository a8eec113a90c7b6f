"""What is measured: an architecture in a setting, both by name, so that it can be sent to any process."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Setting:
    """How a model is used."""

    title: str
    mode: Literal["inference", "training"]
    batch: int


# In the order in which a run with too little time measures them.
SETTINGS = {
    "inference-1": Setting("Inference, batch 1", "inference", 1),
    "training": Setting("AdamW training step, batch 2", "training", 2),
    "inference-8": Setting("Inference, batch 8", "inference", 8),
}


@dataclass(frozen=True)
class Workload:
    """One architecture in one setting."""

    architecture: str
    setting: str

    def __str__(self) -> str:
        return f"{self.architecture} {self.setting}"

    @property
    def trains(self) -> bool:
        return SETTINGS[self.setting].mode == "training"

    @property
    def batch(self) -> int:
        return SETTINGS[self.setting].batch
