"""The native stages put together, for tests: function and example inputs → a model in process."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import fx
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.cache import Store
from precast.native.decompositions.table import native_decompositions
from precast.native.describe import Entry
from precast.native.loops.program import LoopProgram
from precast.native.programs import fuse_and_plan
from precast.native.rules import lower_graph
from precast.native.targets import target_for
from precast.native.targets.cpu.build.built import Library
from precast.native.targets.cpu.build.library import build
from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.fallback import torch_fallback
from precast.runtime import Model, open_library

Function = Callable[..., object]


def trace(function: Function, inputs: Sequence[torch.Tensor], *, dynamic: bool = False) -> fx.GraphModule:
    mode = FakeTensorMode(shape_env=ShapeEnv() if dynamic else None, allow_non_fake_inputs=True)
    fakes = [mode.from_tensor(value, static_shapes=not dynamic) for value in inputs]
    with mode:
        return make_fx(lambda *values: function(*values), decomposition_table=native_decompositions())(*fakes)


def lowered(function: Function, *inputs: torch.Tensor, dynamic: bool = False, name: str = "forward") -> LoopProgram:
    return lower_graph(trace(function, inputs, dynamic=dynamic), name=name)


def make_entry(program: LoopProgram, weights: Mapping[str, str] | None = None) -> Entry:
    return Entry(*fuse_and_plan(program, target_for(["cpu"]), verify=True), weights or {})


def build_entries(entries: Sequence[Entry], cache: Path) -> Library:
    return build(generate(entries), store=Store(cache, limit=2**30))


def open_entries(entries: Sequence[Entry], cache: Path, weights: Mapping[str, torch.Tensor] | None = None) -> Model:
    library = build_entries(entries, cache)
    fallback = torch_fallback([entry.program for entry in entries])
    return open_library(library.path, needs=library.needs, weights=weights, fallback=fallback)


def tracer_bullet(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, tangent: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """``gelu(x @ w + b).sum()`` and its gradients."""
    with torch.enable_grad():
        leaves = [each.detach().requires_grad_() for each in (x, w, b)]
        result = torch.nn.functional.gelu(leaves[0] @ leaves[1] + leaves[2]).sum()
        return result.detach(), *torch.autograd.grad(result, leaves, tangent)


def bullet_inputs(dtype: torch.dtype = torch.float32, rows: int = 8, depth: int = 4, columns: int = 6):
    generator = torch.Generator().manual_seed(0)
    shapes = [(rows, depth), (depth, columns), (columns,), ()]
    return [torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes]
