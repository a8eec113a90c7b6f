"""Records a compilation: stages and built files with their times, passes with their changes, graph breaks."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from torch import fx

from precast.autograd.uncaptured import UncapturedForward
from precast.events import PassDone, StageDone, UnitBuilt, listening
from precast.graph.compilation import get_aot_graph_name
from precast.graph.nodes import has_value, value_of
from precast.graph.printer import target_name
from precast.graph.tensor_spec import describe
from precast.native.loops.printer import print_step
from precast.native.loops.program import LoopProgram
from precast.partition.explanation import PartitionExplanation
from precast.report.contents import Pass, Stage

_MOST_SHOWN = 60
"""How many of the steps or nodes that a pass changed are shown."""
_LONGEST_TEXT = 4000


class Texts:
    """Numbers texts in the order in which they occur; equal ones share a number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self._numbers.setdefault(text, len(self._numbers))

    def all(self) -> tuple[str, ...]:
        return tuple(self._numbers)


class Recording:
    """The recorded events, with the name of the graph that was being compiled."""

    def __init__(self, texts: Texts) -> None:
        self._texts = texts
        self._threads: dict[int, int] = {}
        self._began = time.perf_counter()
        self.stages: list[Stage] = []
        self.passes: list[Pass] = []
        self.partitions: list[tuple[str, PartitionExplanation]] = []
        self.uncaptured: list[UncapturedForward] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """While active, everything is recorded."""
        self._began = time.perf_counter()
        with listening(self._note):
            yield

    def _note(self, event: object) -> None:
        graph = get_aot_graph_name()
        match event:
            case StageDone(function, started, seconds):
                self._add_stage(function.rpartition(":")[2], graph, started, seconds)
            case UnitBuilt(name, started, seconds, was_stored):
                self._add_stage(name, "", started, seconds, "found in the cache" if was_stored else "compiled")
            case PassDone(before=LoopProgram()):
                self.passes.append(self._loop_pass(event, graph))
            case PassDone(before=fx.GraphModule()):
                self.passes.append(self._graph_pass(event, graph))
            case PartitionExplanation():
                self.partitions.append((graph, event))
            case UncapturedForward():
                self.uncaptured.append(event)

    def _add_stage(self, name: str, graph: str, started: float, seconds: float, detail: str = "") -> None:
        thread = self._threads.setdefault(threading.get_ident(), len(self._threads))
        self.stages.append(Stage(name, graph, thread, started - self._began, seconds, detail))

    def _loop_pass(self, done: PassDone[LoopProgram], graph: str) -> Pass:
        before, after = done.before.steps, done.after.steps
        # Passes keep the steps that they do not change.
        kept = set(before) & set(after)
        removed, added = ([step for step in steps if step not in kept] for steps in (before, after))
        shown = [["\n".join(print_step(step)) for step in steps[:_MOST_SHOWN]] for steps in (removed, added)]
        counts = len(before), len(after), len(removed), len(added)
        return self._pass(done.name, "loops", graph, done.seconds, counts, shown)

    def _graph_pass(self, done: PassDone[fx.GraphModule], graph: str) -> Pass:
        before, after = (list(map(node_text, module.graph.nodes)) for module in (done.before, done.after))
        changed = [_only_in_first(before, after), _only_in_first(after, before)]
        counts = len(before), len(after), *map(len, changed)
        return self._pass(done.name, "graph", graph, done.seconds, counts, [each[:_MOST_SHOWN] for each in changed])

    def _pass(
        self, name: str, level: str, graph: str, seconds: float, counts: Sequence[int], shown: Sequence[Sequence[str]]
    ) -> Pass:
        before, after, gone, new = counts
        removed, added = (tuple(self._texts.number(_shortened(text)) for text in texts) for texts in shown)
        is_changing = bool(gone or new)
        return Pass(name, level, graph, seconds, is_changing, before, after, gone, new, removed, added)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else f"{text[:_LONGEST_TEXT]} …"


def _only_in_first(first: Sequence[str], second: Sequence[str]) -> list[str]:
    left = Counter(second)
    found = []
    for each in first:
        if left[each]:
            left[each] -= 1
        else:
            found.append(each)
    return found


def node_text(node: fx.Node) -> str:
    """A node as one line: name, value, operator, arguments."""
    value = f": {describe(value_of(node))}" if has_value(node) else ""
    if node.op in ("placeholder", "get_attr"):
        return f"{node.name}{value}"
    if node.op == "output":
        return f"return {arguments_text(node)}"
    return f"{node.name}{value} = {target_name(node.target)}({arguments_text(node)})"


def arguments_text(node: fx.Node) -> str:
    """A node's arguments as text."""
    keywords = [f"{name}={value}" for name, value in node.kwargs.items()]
    return ", ".join([*map(str, node.args), *keywords])
