"""What ``pipeline.py`` says of every way in is what happens."""

import inspect
import sys
from functools import reduce
from importlib import import_module

import pytest
import torch

import precast
from precast.pipeline import WAYS

onnx = pytest.importorskip("precast.onnx")


def compile_it(tmp_path):
    precast.compile(model())(torch.ones(2, 4)).sum().backward()


def explain_it(tmp_path):
    precast.explain(model(), torch.ones(2, 4))


def export_it(tmp_path):
    precast.export(model(), (torch.ones(2, 4),))


def package_it(tmp_path):
    precast.package(model(), (torch.ones(2, 4),), path=tmp_path / "model.precast")


def train_it(tmp_path):
    network = model()
    optimizer = torch.optim.Adam(network.parameters())
    precast.train_step(network, lambda m, x: m(x).sum(), optimizer, torch.ones(2, 4))


def export_to_onnx(tmp_path):
    onnx.export(model(), (torch.ones(2, 4),))


RUNS = {
    "compile": compile_it,
    "explain": explain_it,
    "export": export_it,
    "package": package_it,
    "train_step": train_it,
    "onnx.export": export_to_onnx,
}


def model():
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())


def code_of(name):
    """The code object of a function that is told as ``module:name``."""
    module, _, path = name.partition(":")
    function = reduce(getattr, path.split("."), import_module(module))
    return inspect.unwrap(function).__code__


def first_calls(codes, run):
    """In which order these were called for the first time."""
    seen = {}

    def note(frame, event, _):
        if event == "call" and frame.f_code in codes:
            seen.setdefault(codes[frame.f_code], None)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(before)
    return list(seen)


def test_every_way_is_told():
    assert WAYS.keys() == RUNS.keys()


@pytest.mark.parametrize("way", RUNS)
def test_the_stages_are_called_in_the_order_that_is_told(way, tmp_path, monkeypatch):
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    told = [stage.function for stage in WAYS[way]]
    called = first_calls({code_of(each): each for each in told}, lambda: RUNS[way](tmp_path))
    assert called == told


def test_a_stage_reads_as_one_line():
    assert str(WAYS["export"][0]).startswith("capture  ")
