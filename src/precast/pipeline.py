"""The stages in their order; the only file that knows it.

AOT autograd composes capture, functionalization, differentiation and partitioning around a call
(``precast.autograd``). What is here turns a callable into a program as an object.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from precast.graph.passes import run_passes
from precast.graph.program import Program
from precast.options import Options
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from precast.trace.record import Decompositions


def functional_program(
    function: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    dynamic_shapes: Any = None,
    decompositions: Decompositions | None = None,
    options: Options | None = None,
) -> Program:
    """Capture a callable and bring it into functional form; ``history`` tells what each stage did and how long.

    >>> import torch
    >>> program = functional_program(lambda x: x.relu_(), (torch.ones(2),))
    >>> program.functional, [record.name for record in program.history]
    (True, ['functionalize'])
    """
    options = options or Options.from_environment()
    captured = capture(function, args, kwargs, dynamic_shapes=dynamic_shapes)
    return run_passes(captured, [partial(functionalize, decompositions=decompositions)], check=options.verify != "off")
