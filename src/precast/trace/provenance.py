"""Records the provenance of every node: the user's lines, the submodule, the autograd node.

Before: ``add: {val}``. After: ``add: {val, stack_trace, nn_module_stack, torch_fn, seq_nr}``, and the user's
annotations (``custom``). Once the graph is complete, each backward node also names the forward node whose derivative it
computes. If the program is itself a graph, its nodes' metadata are copied, and ``from_node`` names them.
"""

import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import lru_cache
from traceback import FrameSummary
from types import FrameType, TracebackType
from typing import Any
from unittest.mock import patch

import torch
from torch import fx
from torch.fx import traceback as fx_traceback
from torch.fx.experimental.proxy_tensor import PythonKeyTracer

from precast.graph.nodes import (
    SourceLine,
    copy_checkpoint_tag,
    copy_provenance,
    is_backward,
    keep_users_annotations,
    sequence_number_of,
    set_autograd_origin,
    set_forward_node,
    set_module_stack,
    set_torch_function,
    source_line_of,
)
from precast.trace.checkpoint_regions import tag_checkpointed
from precast.trace.executed_code import run_watched
from precast.trace.module_paths import ModuleCall, ModulePaths

_INTERNAL_FOLDERS = tuple(
    os.path.join(os.path.dirname(os.path.abspath(path)), "") for path in (torch.__file__, os.path.dirname(__file__))
)

_LAYERS = os.path.join(_INTERNAL_FOLDERS[0], "nn", "modules", "")


@lru_cache(maxsize=4096)
def is_users_file(filename: str) -> bool:
    """Whether a frame's file is neither torch's, nor ours, nor the interpreter's own."""
    internal = (*_INTERNAL_FOLDERS, "<frozen", "<string>", "<eval_with_key>")
    return not filename.startswith(internal) and not filename.endswith(("contextlib.py", "functools.py"))


@contextmanager
def recorded_provenance(module_names: dict[int, str]) -> Iterator[None]:
    """While active, nodes created on this thread are annotated; ``module_names`` maps modules' ids to their paths."""
    thread = threading.get_ident()
    modules = ModulePaths(module_names)
    # A trace may run inside a backward, whose autograd node is not the program's.
    around: torch.autograd.graph.Node | None = torch._C._current_autograd_node()

    call: Callable[..., Any] = torch.nn.Module._call_impl

    # Not by hooks: in compiling mode, they are not called for a module that raises. fx patches __call__ itself.
    def call_noting_module(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return call(module, *args, **kwargs)
        with modules.called(module), _run_node_by_node(module) if isinstance(module, fx.GraphModule) else nullcontext():
            return call(module, *args, **kwargs)

    original = PythonKeyTracer.create_node

    def create_node(tracer: PythonKeyTracer, *args: Any, **kwargs: Any) -> fx.Node:
        node = original(tracer, *args, **kwargs)
        if threading.get_ident() == thread:
            keep_users_annotations(node)
            if node.op == "call_function":
                _annotate(node, tracer, modules.running, around)
        return node

    noting_module = patch.object(torch.nn.Module, "_call_impl", call_noting_module)
    recording = patch.object(PythonKeyTracer, "create_node", create_node)
    with noting_module, recording, modules.noting_reads(), fx_traceback.preserve_node_meta():
        yield


@contextmanager
def _run_node_by_node(module: fx.GraphModule) -> Iterator[None]:
    """While active, a graph module runs node by node, so that recorded nodes get its nodes' metadata."""
    forward = module.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        if kwargs:
            return forward(*args, **kwargs)
        interpreter = fx.Interpreter(module)
        interpreter.extra_traceback = False
        return interpreter.run(*args)

    is_generated = "forward" not in module.__dict__
    if is_generated:
        module.__dict__["forward"] = run
    try:
        yield
    finally:
        if is_generated:
            del module.__dict__["forward"]


_retraced_node: ContextVar[fx.Node | None] = ContextVar("retraced_node", default=None)


@contextmanager
def attributed_to(source: fx.Node) -> Iterator[None]:
    """While active, new nodes get the provenance of ``source``, which is being rerun."""
    token = _retraced_node.set(source)
    try:
        yield
    finally:
        _retraced_node.reset(token)


def _annotate(
    node: fx.Node,
    tracer: PythonKeyTracer,
    modules: list[ModuleCall],
    around: torch.autograd.graph.Node | None,
) -> None:
    source = _retraced_node.get()
    if source is not None:
        copy_provenance(source, node)
        copy_checkpoint_tag(source, node)
    running: torch.autograd.graph.Node | None = torch._C._current_autograd_node()
    if running is not None and running is not around:
        set_autograd_origin(node, running._sequence_nr(), backward=True)
        return
    # The autograd kernel creates its node, and so increments the counter, before the op reaches the tracer.
    set_autograd_origin(node, torch._C._autograd._get_sequence_nr() - 1, backward=False)
    tag_checkpointed(node)
    if source is not None:
        return
    if (function := tracer.torch_fn_metadata) is not None:
        set_torch_function(node, function, tracer.torch_fn_counts[function])
    if not node.stack_trace:
        node.stack_trace = format_users_frames(sys._getframe(1)) or None
    if modules and "nn_module_stack" not in node.meta:
        set_module_stack(node, {key: (path, kind) for key, path, kind in modules})


def format_users_frames(frame: FrameType | None) -> str:
    """The user's frames from the start of tracing down to ``frame``, in Python's traceback form.

    If there are none, as in a program that is one of torch's layers, the innermost line of such a layer.
    """
    lines: list[str] = []
    layer: str | None = None
    while frame is not None and frame.f_code is not run_users_code.__code__:
        name = frame.f_code.co_filename
        if is_users_file(name):
            lines.append(_format_line(name, frame.f_lineno, frame.f_code.co_name))
        elif layer is None and name.startswith(_LAYERS) and frame.f_code.co_name == "forward":
            layer = _format_line(name, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return "\n".join(reversed(lines)) or layer or ""


def format_users_summary(summary: Iterable[FrameSummary]) -> str:
    """The same for recorded frames, outermost first."""
    lines: list[str] = []
    for frame in summary:
        if (frame.filename, frame.name) == (__file__, run_users_code.__name__):
            lines = []
        elif is_users_file(frame.filename):
            lines.append(_format_line(frame.filename, frame.lineno or 0, frame.name))
    return "\n".join(lines)


@lru_cache(maxsize=65536)
def _format_line(filename: str, line: int, function: str) -> str:
    code = linecache.getline(filename, line).strip()
    return f'  File "{filename}", line {line}, in {function}' + (f"\n    {code}" if code else "")


def run_users_code(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Call the user's function; frames outside this one are not part of the user's program."""
    return run_watched(function, args, kwargs)


def innermost_users_line() -> str | None:
    """The current line of the user's program; while a graph is retraced, that of the node being rerun."""
    if (retraced := _retraced_node.get()) is not None:
        line = source_line_of(retraced)
        return None if line is None else str(line)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not run_users_code.__code__:
        if is_users_file(frame.f_code.co_filename):
            return _describe_line(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        frame = frame.f_back
    return None


def _describe_line(filename: str, line: int, function: str) -> str:
    return str(SourceLine(filename, line, function, linecache.getline(filename, line).strip()))


def users_line(traceback: TracebackType | None) -> str | None:
    """The innermost line of the user's program in a traceback, for error messages."""
    found = None
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if is_users_file(code.co_filename):
            found = _describe_line(code.co_filename, traceback.tb_lineno, code.co_name)
        traceback = traceback.tb_next
    return found


def link_nodes(graph: fx.Graph) -> None:
    """Give each backward node the name and the provenance of the forward node it differentiates.

    A node without a user's line, such as a view that functionalization regenerated, gets the provenance of its operand.
    """
    forward_by_number: dict[int, fx.Node] = {}
    for node in (node for node in graph.nodes if node.op == "call_function"):
        number = sequence_number_of(node)
        if not is_backward(node):
            if not node.stack_trace and (sources := [each for each in node.all_input_nodes if each.stack_trace]):
                copy_provenance(sources[0], node)
            if number is not None:
                forward_by_number.setdefault(number, node)
        elif number is not None and (forward := _differentiated(number, forward_by_number)) is not None:
            set_forward_node(node, forward)
            copy_provenance(forward, node)


def _differentiated(number: int, forward_by_number: dict[int, fx.Node]) -> fx.Node | None:
    """The forward node of this number, or the one before: writing into a view creates two autograd nodes."""
    if number in forward_by_number:
        return forward_by_number[number]
    before = max((known for known in forward_by_number if known < number), default=None)
    return None if before is None else forward_by_number[before]
