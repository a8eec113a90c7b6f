"""Programs in the manner of PyTorch's own tests: what holds of those of its exporter holds of ours."""

from types import FunctionType, ModuleType

import pytest
import torch

from tests.export.peer.behaviours import (
    calls,
    checks,
    constants,
    control_flow,
    decompositions,
    objects,
    relations,
    sizes,
    state,
    unflattened,
    values,
)
from tests.export.peer.comparison import PEERS

TOPICS = (calls, sizes, relations, values, checks, control_flow, state, constants, objects, decompositions, unflattened)


def behaviours_of(topic: ModuleType) -> dict[str, FunctionType]:
    """The functions of a topic that ask something of an exporter."""
    found = {name: value for name, value in vars(topic).items() if isinstance(value, FunctionType)}
    return {
        n: f for n, f in found.items() if f.__module__ == topic.__name__ and f.__code__.co_varnames[:1] == ("peer",)
    }


BEHAVIOURS = {
    f"{topic.__name__.rpartition('.')[2]}-{n}": f for topic in TOPICS for n, f in behaviours_of(topic).items()
}
# Every ninth is asked each time, all of them in the slow tier.
QUICK = sorted(BEHAVIOURS)[::9]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in BEHAVIOURS]
)
def test_both_exporters_behave_alike(name):
    answers = []
    for peer in PEERS.values():
        torch.manual_seed(0)
        answers.append(BEHAVIOURS[name](peer))
    assert answers[1] == answers[0]
