"""Whatever fails on the way, torch, the libraries and the model are afterwards as they were before."""

import logging
from pathlib import Path

import pytest
import torch
from onnxscript import evaluator
from torch import nn
from torch._decomp import meta_table

from precast.onnx import export
from precast.trace.capture.symbolic import _INQUIRERS, _MAKERS


class PlantedError(Exception):
    pass


def fail(*_: object, **__: object) -> None:
    raise PlantedError


class Model(nn.Module):
    def __init__(self, layer: nn.Module, fails: bool):
        super().__init__()
        self.layer = layer
        self.register_buffer("count", torch.zeros(()))
        self.fails = fails

    def forward(self, x):
        self.count += 1
        x = self.layer(x)[0] + torch.arange(3)
        return fail() if self.fails else x.sin()


def state(model: nn.Module) -> list[object]:
    """All that exporting exchanges for a while."""
    return [
        {name: getattr(torch, name) for name in (*_MAKERS, *_INQUIRERS)},
        (nn.Module.__call__, nn.Module.__getattr__, nn.Module.__setattr__),
        {name: dict(module.__dict__) for name, module in model.named_modules()},
        [tensor.data_ptr() for tensor in model.state_dict().values()],
        (model.training, float(model.count), torch.is_grad_enabled(), torch.get_default_device()),
        evaluator.default(),
        [logging.getLogger(name).level for name in ("onnxscript", "onnx_ir")],
        dict(torch.ops.aten.gru.input.py_kernels),
        torch.ops.aten.gru.input in meta_table,
    ]


STEPS = {
    "translating": "precast.onnx.translate.check_rules",
    "optimizing": "precast.onnx.optimize.fuse_patterns",
    "verifying": "precast.onnx.verify.Session",
    "saving": "precast.onnx.program.ir.save",
}


@pytest.mark.thinned
@pytest.mark.parametrize("step", ["capturing", "running a rule", *STEPS])
@pytest.mark.parametrize("capture", ["aten", "symbolic"])
def test_state_after_a_planted_error(step: str, capture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = Model(nn.GRU(3, 3) if capture == "aten" else nn.Linear(3, 3), fails=step == "capturing")
    before = state(model)
    if step in STEPS:
        monkeypatch.setattr(STEPS[step], fail)
    table = {torch.ops.aten.sin.default: fail} if step == "running a rule" else {}
    with pytest.raises(PlantedError):
        export(
            model, (torch.randn(2, 3),), path=tmp_path / "model.onnx", capture=capture, custom_translation_table=table
        )
    monkeypatch.undo()
    assert state(model) == before
    assert not list(tmp_path.iterdir())
