"""Who takes part, and what each is asked to do."""

import dataclasses
from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.peers.workload import Workload
from precast.options import Options


@dataclass(frozen=True)
class Contender:
    """One way to run a model."""

    title: str
    is_ours: bool = False
    infers: bool = True
    trains: bool = True
    reads_onnx: bool = False
    package: str | None = None
    """What has to be installed beside torch and Precast."""

    @property
    def is_available(self) -> bool:
        return self.package is None or find_spec(self.package) is not None


CONTENDERS = {
    "eager": Contender("eager"),
    "compile": Contender("torch.compile"),
    "compile-step": Contender("torch.compile, also of the optimizer", infers=False),
    "compile-frozen": Contender("torch.compile, freezing", trains=False),
    "onnxruntime": Contender("ONNX Runtime", trains=False, reads_onnx=True, package="onnxruntime"),
    "openvino": Contender("OpenVINO", trains=False, reads_onnx=True, package="openvino"),
    "compile-precast": Contender('torch.compile, backend="precast"', is_ours=True),
    "precast": Contender("Precast", is_ours=True),
    "precast-step": Contender("Precast, train_step", is_ours=True, infers=False),
    "precast-frozen": Contender("Precast, freeze", is_ours=True, trains=False),
}


def contenders_for(workload: Workload, names: list[str]) -> list[str]:
    """Those of the names that can do this on this machine, in the order of the table."""
    return [
        name
        for name, contender in CONTENDERS.items()
        if name in names
        and contender.is_available
        and (contender.trains if workload.trains else contender.infers)
        and (name != "precast-frozen" or _can_freeze())
    ]


def _can_freeze() -> bool:
    return "freeze" in {field.name for field in dataclasses.fields(Options)}
