"""Compiles, runs and observes a function, and collects the content of its report.

Nothing is computed twice: graphs, programs and plans are those of the compilation, times are those of its timers, and
the reasons for saving and guarding come from the code that decided.
"""

from __future__ import annotations

import copy
import platform
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any

import torch
from torch.utils import _pytree as pytree

from precast._version import __version__
from precast.autograd.callable import AotCallable
from precast.autograd.compilers_in_use import CompilersInUse, compilers_of, dynamic_of
from precast.autograd.uncaptured import GraphBreakWarning, name_of, names_within
from precast.autograd.variants.table import Variant
from precast.errors import InputTypeError
from precast.graph.compilation import kind_of_graph
from precast.native.backend import NativeCompiler
from precast.options import Options, as_options
from precast.partition.explanation import PartitionExplanation
from precast.report import contents
from precast.report.breaks import eager_fallbacks, graph_breaks
from precast.report.explanation import copied
from precast.report.graph_contents import GraphWriter, InputNames
from precast.report.lowered import LoweredGraph, lowering_compilers, native_compilers, unwrapped
from precast.report.recording import Recording, Texts
from precast.report.source_excerpts import SourceLines
from precast.report.step_costs import measure_roofline
from precast.trace.capture.module_state import root_modules

Call = Callable[[], Any]


def collect(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], *, calls: int = 10, title: str | None = None
) -> contents.Report:
    """What compiling and calling ``fn`` makes of it; without ``calls``, nothing is built or measured.

    A copy of the function is called, with gradients if the call requires them.
    """
    if not callable(fn):
        raise InputTypeError(
            f"precast.report got an object of type {type(fn).__name__}",
            why="it reports on what a function or module becomes",
            fix="pass the function, then the arguments of one call: precast.report(model, x, path='report.html')",
        )
    if compilers_of(fn) is not None and unwrapped(fn) is fn:
        raise InputTypeError(
            f"precast.report got an object of type {type(fn).__name__}",
            why="a training step compiles itself, and changes its model at every call",
            fix="report on the model, or on a function that computes the loss and calls backward and optimizer.step",
        )
    return _Collection(fn, args, kwargs, calls, title).report()


class _Collection:
    """One report under construction."""

    def __init__(
        self, fn: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], calls: int, title: str | None
    ) -> None:
        self._title = title or name_of(unwrapped(fn))
        self._function = copy.deepcopy(unwrapped(fn))
        self._args, self._kwargs = pytree.tree_map_only(torch.Tensor, copied, (tuple(args), dict(kwargs)))
        self._calls = calls
        self._texts, self._lines = Texts(), SourceLines()
        self._recording = Recording(self._texts)
        self._lowered: list[LoweredGraph] = []
        self._compilers, self._dynamic = native_compilers(fn), dynamic_of(fn)
        self._options = _options_of(self._compilers)
        if calls:
            self._compilers = _with_timers(self._compilers, self._options)
        else:
            self._compilers = lowering_compilers(self._compilers, self._lowered)

    def report(self) -> contents.Report:
        call = AotCallable(self._function, self._compilers, dynamic=self._dynamic, logs=False, graph_breaks=True)
        with _own_gradients(self._function), warnings.catch_warnings():
            warnings.simplefilter("ignore", GraphBreakWarning)
            with self._recording.listening():
                self._compile(call)
            timing = self._time(call) if self._calls else None
        graphs = self._graphs(call)
        return contents.Report(
            self._title,
            "training" if any(graph.kind == "backward" for graph in graphs) else "inference",
            datetime.now().astimezone().isoformat(timespec="seconds"),
            made_with(),
            options={name: str(value) for name, value in asdict(self._options).items()},
            modules=self._modules,
            graphs=graphs,
            partitions=tuple(self._partition(*each) for each in self._recording.partitions),
            variants=tuple(_variant(each) for each in call.variants()),
            breaks=self._breaks(),
            regions=self._regions(call),
            passes=tuple(self._recording.passes),
            stages=tuple(self._recording.stages),
            peak=_peak(graphs) if self._calls else None,
            timing=timing,
            # Last: everything before it may add lines and texts.
            lines=self._lines.lines(),
            excerpts=self._lines.excerpts(),
            texts=self._texts.all(),
        )

    def _compile(self, call: AotCallable) -> None:
        if not self._calls and call.compile_for(*self._args, **self._kwargs):
            return
        self._lowered.clear()
        self._run(call)

    def _run(self, function: Callable[..., Any]) -> None:
        """One call, and the gradients of everything that it returns."""
        result = function(*self._args, **self._kwargs)
        if torch.is_grad_enabled():
            leaves = [each for each in pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
            wanted = [each for each in leaves if each.requires_grad and each.is_floating_point()]
            if wanted:
                torch.autograd.backward(wanted, [torch.ones_like(each) for each in wanted])

    def _time(self, call: AotCallable) -> contents.Timing:
        compiled = _shortest(lambda: self._run(call), self._calls)
        # Gradients exist since the first call: no more memory is allocated for them.
        return contents.Timing(self._calls, compiled, _shortest(lambda: self._run(self._function), self._calls))

    def _graphs(self, call: AotCallable) -> tuple[contents.Graph, ...]:
        lowered = self._lowered if not self._calls else [LoweredGraph.of(each) for each in _profiled(self._compilers)]
        names = {each.name: _input_names(each) for each in call.variants()}
        writer = GraphWriter(self._lines, self._texts)
        self._lowered = lowered
        handed = {each.name: frozenset(tensor.name for tensor in explanation.saved)
                  for name, explanation in self._recording.partitions for each in lowered
                  if each.name == name.replace("_joint_", "_forward_")}  # fmt: skip
        graphs = tuple(
            writer.graph(each, names.get(_variant_name(each.name), InputNames()), handed.get(each.name, frozenset()))
            for each in lowered
        )
        self._modules = writer.modules
        return graphs

    def _partition(self, graph: str, explanation: PartitionExplanation) -> contents.Partition:
        number = self._lines.number
        return contents.Partition(
            graph,
            explanation.saved_bytes,
            explanation.default_bytes,
            explanation.allowed_bytes,
            tuple(
                contents.Saved(each.name, each.bytes, each.reason, number(each.source_line))
                for each in explanation.saved
            ),
            tuple(
                contents.Recomputed(
                    each.name, each.op, each.reason, each.flops, each.bytes_moved, number(each.source_line)
                )
                for each in explanation.recomputed
            ),
        )

    def _breaks(self) -> tuple[contents.Break, ...]:
        found = graph_breaks(self._recording.uncaptured, names_within(self._function))
        return (*found, *(each for graph in self._lowered for each in eager_fallbacks(graph)))

    def _regions(self, call: AotCallable) -> tuple[contents.Region, ...]:
        name_within, regions = names_within(self._function), call.regions()
        if not any(each.is_in_python for each in regions):
            return ()
        return tuple(contents.Region(name_within(each.function), each.is_in_python) for each in regions)


def _variant_name(graph: str) -> str:
    """The common name of the graphs of one variant: ``model__3_*_0`` for ``model__3_forward_0``."""
    return graph.replace(f"_{kind_of_graph(graph)}_", "_*_")


def _input_names(variant: Variant) -> InputNames:
    passed = {each.partition(": ")[0] for each in variant.inputs}
    return InputNames(variant.tensors, frozenset(variant.tensors) - passed)


def made_with() -> dict[str, str]:
    """Versions, and the machine."""
    return {
        "precast": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "threads": str(torch.get_num_threads()),
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor()


def _options_of(compilers: CompilersInUse) -> Options:
    assert isinstance(compilers.forward, NativeCompiler), "the native backend is ours"
    return as_options(compilers.forward.options)


def _with_timers(compilers: CompilersInUse, options: Options) -> CompilersInUse:
    timed = replace(options, profile=True)
    return replace(
        compilers,
        forward=compilers.forward.with_options(timed),
        backward=compilers.backward.with_options(timed),
        inference=compilers.inference.with_options(timed),
    )


def _profiled(compilers: CompilersInUse) -> list[Any]:
    natives = {id(each): each for each in (compilers.inference, compilers.forward, compilers.backward)}
    return [graph for each in natives.values() if isinstance(each, NativeCompiler) for graph in each.profiled]


def _peak(graphs: Sequence[contents.Graph]) -> contents.Peak | None:
    """The peak performance of the machine, if steps have times to compare with it."""
    reached = [step.flops / step.seconds for graph in graphs for step in graph.steps if step.seconds]
    if not reached:
        return None
    found = measure_roofline().at_least(max(reached))
    return contents.Peak(found.threads, found.flops_a_second, found.bytes_a_second)


def _shortest(call: Call, count: int) -> float:
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times)


@contextmanager
def _own_gradients(function: Callable[..., Any]) -> Any:
    """While active, parameters accumulate gradients that are discarded: a function's own modules cannot be copied."""
    parameters = [each for module in root_modules(function).values() for each in module.parameters()]
    before = [each.grad for each in parameters]
    for each in parameters:
        each.grad = None
    try:
        yield
    finally:
        for each, gradient in zip(parameters, before, strict=True):
            each.grad = gradient


def _variant(variant: Variant) -> contents.Variant:
    return contents.Variant(
        variant.name, variant.reason, variant.seconds, variant.inputs, variant.guards, variant.sizes
    )
