"""Generates the code of graph modules once, after several edits, instead of after each: it takes as long as the edits.

Before: three modules are made from one graph, one after the other, and Python code is generated for each
After:  for the last one
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec
from unittest.mock import patch

from torch import fx

from precast.graph.program import Program

P = ParamSpec("P")


def code_at_the_end(edit: Callable[P, Program]) -> Callable[P, Program]:
    """Decorates a function that makes a program and runs none of the graph modules that it makes on the way."""

    @wraps(edit)
    def edited(*args: P.args, **kwargs: P.kwargs) -> Program:
        thread = threading.get_ident()
        generate = fx.GraphModule.recompile
        waiting: set[int] = set()

        def note(module: fx.GraphModule) -> object:
            if threading.get_ident() != thread:
                return generate(module)
            waiting.add(id(module))
            return None

        with patch.object(fx.GraphModule, "recompile", note):
            program = edit(*args, **kwargs)
        for module in program.module.modules():
            if isinstance(module, fx.GraphModule) and id(module) in waiting:
                module.recompile()
        return program

    return edited
