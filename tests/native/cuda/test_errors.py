"""What is missing or too old is told; settings of torch are kept."""

import pytest
import torch

from precast.errors import BuildError
from precast.native.targets.cuda.build import cubins
from precast.native.targets.cuda.target import architecture
from tests.native.cuda.interpreted import InterpretedGpu, compiled
from tests.native.lowering.cases import floats, integers


def test_a_missing_triton_is_told(monkeypatch):
    monkeypatch.setattr(cubins, "triton_version", lambda: None)
    with pytest.raises(BuildError, match=r"(?s)Triton.*not installed.*pip install 'precast\[cuda\]'"):
        cubins.require_triton()


def test_an_old_gpu_is_named(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Old")
    with pytest.raises(BuildError, match=r"(?s)no code for Old.*7.5.*8.0"):
        architecture()
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert architecture() == 90


@pytest.mark.parametrize("is_deterministic", [False, True])
def test_atomic_sums_are_left_to_torch_where_runs_must_agree(tmp_path, is_deterministic: bool):
    target = InterpretedGpu(tmp_path)
    x, i = floats(6, 4), integers(6, low=0, high=9)

    def function(x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return torch.zeros(9, 4).index_add(0, i, x)

    mine = compiled(target, function)
    mine(x, i)
    assert not target.built.pop().program.fallbacks
    torch.use_deterministic_algorithms(is_deterministic)
    try:
        torch.testing.assert_close(mine(x, i), function(x, i))
    finally:
        torch.use_deterministic_algorithms(False)
    assert bool([step for entry in target.built for step in entry.program.fallbacks]) == is_deterministic
