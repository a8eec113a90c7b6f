"""The stages of every entry point, in order: an overview of the whole system.

``WAYS`` lists, for each public function, the stages that a first call goes through and the result of each;
``docs/architecture.md`` uses the same words. A test keeps it true: it runs every entry point and records which of these
functions were called, in which order. The code that runs the stages is elsewhere, because imports point down: for a
call at the top of ``autograd.variants.compile``, for a graph in ``native.compiler.start_graph``.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from precast.graph.passes import run_passes
from precast.graph.program import Program
from precast.options import Options
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from precast.trace.record import Decompositions


class Stage(NamedTuple):
    """One stage: the function that does it, as ``module:name``, and its result."""

    function: str
    result: str

    def __str__(self) -> str:
        return f"{self.function.partition(':')[2]:24} {self.result}"


# Python to one functional graph with its gradients, then to two graphs: AOT autograd, the same for every backend.
_JOINT_GRAPHS = (
    Stage(
        "precast.trace.capture.prepare:prepare", "a flat function, fake inputs, the state it reads, symbols for sizes"
    ),
    Stage("precast.trace.functionalize.analysis:analyze", "what it mutates, what aliases what, whether it is random"),
    Stage("precast.autograd.variants.graphs:trace_joint", "the joint graph: forward and gradients, without mutation"),
    Stage(
        "precast.native.partition:native_partition", "the forward and the backward graph, with what is saved between"
    ),
)
# A functional graph to loop programs: the same for compiled functions, explanations and packages.
_REWRITTEN = Stage(
    "precast.native.programs:rewrite_graph", "the graph after its passes: random streams, merged products"
)
_SPLIT = Stage("precast.native.split:split_graph", "segments: what is native, and what torch runs")
_LOOPS = (
    Stage(
        "precast.native.rules.lower:lower_graph", "a loop program for each native segment, by one rule for each node"
    ),
    Stage("precast.native.loops.passes:run_loop_passes", "the same program with loops fused, by the target's passes"),
    Stage("precast.native.passes.memory:plan", "a place in the arena for every temporary buffer"),
    Stage("precast.native.loops.verifier:verify_plan", "proof that no access leaves its buffer or meets another's"),
)
_CODE = (
    Stage(
        "precast.native.targets.cpu.codegen.generate:generate", "sources: a function for each kernel, host code around"
    ),
    Stage("precast.native.targets.cpu.build.library:start_build", "a library, built now or found in the cache"),
)
_EXPORT = (
    Stage("precast.trace.capture.program:capture", "a graph of ATen operators from before autograd, with its state"),
    Stage("precast.trace.functionalize.program:functionalize", "the same without mutation: updates are outputs"),
    Stage("precast.export.tidy:tidied", "the same without leftovers of tracing, with numbered names"),
)

WAYS: Mapping[str, tuple[Stage, ...]] = MappingProxyType(
    {
        "compile": (
            *_JOINT_GRAPHS,
            _REWRITTEN,
            _SPLIT,
            *_LOOPS,
            *_CODE,
            Stage(
                "precast.autograd.call_parts:CallParts.assemble", "a call: mutations, aliases, gradients as in eager"
            ),
        ),
        "explain": (
            *_JOINT_GRAPHS,
            _REWRITTEN,
            _SPLIT,
            *_LOOPS,
            Stage("precast.report.graph_explanation:explain_graph", "kernels, library calls and fallbacks, in words"),
        ),
        "export": _EXPORT,
        "package": (
            *_EXPORT,
            Stage("precast.export.serialize.document:to_document", "the program as JSON, for readers without its code"),
            Stage("precast.packaging.traced_program:trace_program", "the graph in the native backend's operators"),
            Stage("precast.packaging.traced_program:fold_constants_of", "constants computed, batch norms folded"),
            _REWRITTEN,
            *_LOOPS,
            Stage(
                "precast.native.targets.cpu.codegen.generate:generate", "sources for all entries over shared weights"
            ),
            Stage("precast.native.targets.cpu.build.library:build", "a library for each kind of processor"),
            Stage(
                "precast.artifact.package:write_package", "one file: manifest, programs, libraries, weights, samples"
            ),
        ),
        "train_step": (
            Stage("precast.training.initial_state:add_initial_state", "the state that the optimizer begins with"),
            Stage("precast.training.capture:capture_step", "the whole step as a program: gradients and updates inside"),
            *_EXPORT,
            Stage(
                "precast.native.graph_passes.numbers_in_tensors:keep_numbers_in_tensors",
                "learning rates and counts of steps as tensors",
            ),
            Stage("precast.packaging.traced_program:retraced", "the graph in the backend's operators"),
            Stage("precast.autograd.boundary.mutations:mark_updates", "which results may be written over their inputs"),
            _REWRITTEN,
            _SPLIT,
            *_LOOPS,
            *_CODE,
        ),
        "onnx.export": (
            *_EXPORT,
            Stage("precast.onnx.capture:translatable", "operators without a rule decomposed into others"),
            Stage("precast.onnx.translate:translate", "an ONNX model, node by node"),
            Stage("precast.onnx.optimize:finish", "functions inlined, the asked opset, fewer nodes"),
            Stage("precast.onnx.verify:verify_model", "proof by onnxruntime: the same numbers, at other sizes too"),
        ),
    }
)


def functional_program(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    decompositions: Decompositions | None = None,
    options: Options | None = None,
) -> Program:
    """Capture a callable and functionalize it; ``history`` records what each stage did and how long it took.

    >>> import torch
    >>> program = functional_program(lambda x: x.relu_(), (torch.ones(2),))
    >>> program.functional, [record.name for record in program.history]
    (True, ['functionalize'])
    """
    options = options or Options.from_environment()
    captured = capture(function, args, kwargs, dynamic_shapes=dynamic_shapes)
    return run_passes(captured, [partial(functionalize, decompositions=decompositions)], check=options.verify != "off")
