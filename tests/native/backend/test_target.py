"""The seam of targets, by a second one: what the driver makes runs through whatever target it is given."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import precast
from precast.backend import Backend
from precast.errors import InputValueError
from precast.graph.nodes import devices_of
from precast.native.backend import BACKEND, NativeCompiler
from precast.native.describe import Entry
from precast.native.fallback import run_step
from precast.native.loops.interpreter import interpret, sizes_of
from precast.native.loops.program import LoopProgram
from precast.native.passes.inline import inline_producers
from precast.native.passes.merge import merge_kernels
from precast.native.passes.tidy import remove_dead
from precast.native.passes.update_inputs import update_inputs
from precast.native.split import split_graph
from precast.native.targets import Code, OpenEntry, Target, target_for, targets
from precast.options import Options


@dataclass(frozen=True, kw_only=True)
class LoopsAsTheyAre(Code):
    entries: Sequence[Entry]


@dataclass(frozen=True)
class InterpretedEntry:
    entry: Entry
    weights: Mapping[str, torch.Tensor]

    def run(self, tensors: Sequence[Any], *, like_torch: bool) -> tuple[Any, ...]:
        program, own, given = self.entry.program, self.entry.weights, map(torch.as_tensor, tensors)
        inputs = [self.weights[own[each.name]] if each.name in own else next(given) for each in program.inputs]
        return interpret(program, inputs, partial(run_step, sizes=sizes_of(program, inputs)))


class Interpreter(Target):
    """Loop programs as they are, on whole arrays; products are all that it has a routine for."""

    name, device, routines = "interpreter", "cpu", frozenset({"matmul", "convolution"})
    passes = (inline_producers, remove_dead, merge_kernels, update_inputs)  # type: ignore[assignment]
    reusing_passes = (update_inputs,)  # type: ignore[assignment]

    def __init__(self) -> None:
        self.built: list[Entry] = []

    def start(self, entries: Sequence[Entry], options: Options) -> Callable[[], Code]:
        self.built += entries
        return lambda: LoopsAsTheyAre("", entries=entries)

    def open(
        self, code: Code, programs: Sequence[LoopProgram], weights: Mapping[str, torch.Tensor] | None = None
    ) -> Sequence[OpenEntry]:
        assert isinstance(code, LoopsAsTheyAre)
        return [InterpretedEntry(entry, weights or {}) for entry in code.entries]

    @property
    def steps(self) -> list[str]:
        """What was built: routines and operators by name, kernels as such."""
        steps = [step for entry in self.built for step in entry.program.steps]
        return [getattr(step, "routine", getattr(step, "operator", "kernel")) for step in steps]


@pytest.fixture
def target() -> Interpreter:
    return Interpreter()


@pytest.fixture
def compiled(target: Interpreter, tmp_path) -> Callable[..., Any]:
    compilers = NativeCompiler(target=target), NativeCompiler(is_for_inference=True, target=target)
    backend = replace(BACKEND, fw_compiler=compilers[0], inference_compiler=compilers[1])
    # Whoever builds something fails.
    options = Options(cache_directory=tmp_path, compiler="no-such-compiler")

    def compile_here(function: Callable[..., Any], **others: Any) -> Callable[..., Any]:
        return precast.compile(function, backend=backend, options=options, **others)

    assert isinstance(backend, Backend)
    return compile_here


def test_inference_runs_through_the_target(compiled, target):
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.LayerNorm(8)).eval()
    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(compiled(model)(x), model(x))
    assert "matmul" in target.steps
    assert "kernel" in target.steps


def test_training_runs_through_the_target(compiled, target):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    other = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
    other.load_state_dict(model.state_dict())
    x, labels = torch.randn(2, 3, 4, 4), torch.tensor([1, 3])
    F.cross_entropy(compiled(model)(x), labels).backward()
    F.cross_entropy(other(x), labels).backward()
    for mine, expected in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)
    torch.testing.assert_close(model[1].running_mean, other[1].running_mean)
    assert len(target.built) >= 2


def test_one_program_serves_all_sizes(compiled, target):
    function = compiled(lambda x: (x @ x.T).softmax(-1).sum(0), dynamic=True)
    for rows in (3, 5, 8):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(function(x), (x @ x.T).softmax(-1).sum(0))
    assert len(target.built) == 1


def test_a_rule_whose_routine_the_target_lacks_falls_back(compiled, target):
    function = lambda x: x.exp().sort(-1).values + 1  # noqa: E731
    x = torch.randn(3, 4)
    torch.testing.assert_close(compiled(function)(x), function(x))
    assert [step for step in target.steps if step != "kernel"] == ["aten.sort.default"]


def test_a_routine_of_its_own_gives_way_to_the_general_one(compiled, target):
    x, w = torch.randn(1, 4, 5, 5), torch.randn(4, 1, 3, 3)
    function = lambda x, w: F.conv2d(x, w, padding=1, groups=4)  # noqa: E731
    torch.testing.assert_close(compiled(function)(x, w), function(x, w))
    assert "convolution" in target.steps


def test_constants_are_handed_over_when_code_is_opened(compiled):
    table = torch.randn(4)
    function = lambda x: x * table + torch.arange(4)  # noqa: E731
    torch.testing.assert_close(compiled(function)(torch.ones(4)), function(torch.ones(4)))


def test_a_target_that_keeps_no_code_compiles_at_every_start(compiled, target):
    for _ in range(2):
        torch.testing.assert_close(compiled(torch.sin)(torch.ones(3)), torch.ones(3).sin())
    assert len(target.built) == 2


def test_a_target_without_libraries_says_so(target):
    with pytest.raises(InputValueError, match="makes no libraries"):
        target.build_library([], {}, Options(), processor=None)


def test_what_is_native_is_on_devices_of_the_target():
    graph = make_fx(lambda x, y: [x.exp(), y.sin()], tracing_mode="fake")(torch.ones(2), torch.ones(2, device="meta"))
    for device, operator in (("cpu", torch.ops.aten.exp.default), ("meta", torch.ops.aten.sin.default)):
        native = [segment for segment in split_graph(graph, device).segments if segment.is_native]
        assert [node.target for segment in native for node in segment.nodes] == [operator]
    assert list(devices_of(graph.graph)) == ["cpu", "meta", "cpu", "meta"]


def test_the_devices_of_a_graph_choose_its_target():
    devices = (["cpu"], ["cpu", "cuda"], ["cuda"], ["meta"], [])
    assert [target_for(each).name for each in devices] == ["cpu", "cuda", "cuda", "cpu", "cpu"]
    assert len({target.device for target in targets()}) == len(targets())
