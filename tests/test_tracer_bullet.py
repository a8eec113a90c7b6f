"""One function and its gradient through every stage: traced, split, lowered, built, run, saved, run without torch."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from precast import aot_function
from precast.artifact.manifest import packed_entry
from precast.artifact.package import NativeCode, write_package
from precast.cache import Store
from precast.native.describe import Entry, describe_entry
from precast.native.passes.memory import plan
from precast.native.rules import lower_graph
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.passes import fuse
from precast.runtime import open_library

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import numpy as np
import precast.runtime

model = precast.runtime.load(sys.argv[1])
inputs = np.load(sys.argv[2])
loss, *saved = model["forward"](inputs["x"], inputs["w"], inputs["b"])
gradients = model["backward"](*saved, np.ones((), dtype=np.float32))
np.savez(sys.argv[3], loss, *gradients)
"""


def bullet(x, w, b):
    return torch.nn.functional.gelu(x @ w + b).sum()


@pytest.fixture(scope="module")
def inputs():
    torch.manual_seed(0)
    return [torch.randn(*shape, requires_grad=True) for shape in ((8, 4), (4, 6), (6,))]


@pytest.fixture(scope="module")
def expected(inputs):
    exact = [value.detach().double().requires_grad_() for value in inputs]
    loss = bullet(*exact)
    return [loss.detach(), *torch.autograd.grad(loss, exact)]


@pytest.fixture(scope="module")
def entries(inputs):
    """The forward and the backward graph that AOT autograd hands to compilers, as fused and planned loops."""
    found = []

    def collect(graph, _):
        program = fuse(lower_graph(graph, name=("forward", "backward")[len(found)], fallbacks=False))
        found.append(Entry(program, plan(program), {}))
        return graph

    aot_function(bullet, collect)(*inputs)
    return found


@pytest.fixture(scope="module")
def library(entries, tmp_path_factory):
    return build(generate(entries), store=Store(tmp_path_factory.mktemp("cache"), limit=2**30))


def assert_close(results, expected):
    for result, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(torch.as_tensor(result).double(), wanted.double(), rtol=1e-5, atol=1e-5)


def test_forward_and_backward_run_natively_in_process(inputs, expected, library):
    model = open_library(library.path, needs=library.needs)
    loss, *saved = model["forward"](*[value.detach() for value in inputs])
    assert_close([loss, *model["backward"](*saved, torch.ones(()))], expected)


def test_compiled_by_it_the_function_trains(inputs, expected, library):
    model = open_library(library.path, needs=library.needs)
    names = iter(["forward", "backward"])
    compiled = aot_function(bullet, lambda graph, _: model[next(names)])
    loss = compiled(*inputs)
    assert_close([loss.detach(), *torch.autograd.grad(loss, inputs)], expected)


def test_saved_and_loaded_it_runs_without_torch(inputs, expected, entries, library, tmp_path):
    described = [packed_entry(describe_entry(entry)) for entry in entries]
    code = {"native": NativeCode(library.path.read_bytes())}
    path = write_package(tmp_path / "bullet.precast", entries=described, code=code, weights={}, libraries=library.needs)
    np.savez(tmp_path / "in.npz", **{name: value.detach().numpy() for name, value in zip("xwb", inputs, strict=True)})
    arguments = [str(path), str(tmp_path / "in.npz"), str(tmp_path / "out.npz")]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *arguments], check=True)
    with np.load(tmp_path / "out.npz") as results:
        assert_close([results[name] for name in results.files], expected)
