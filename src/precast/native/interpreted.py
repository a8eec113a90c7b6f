"""The interpreting backend, which builds nothing."""

from collections.abc import Callable, Sequence

import torch
from torch import fx


def interpret(graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
    """Run the graph's ATen ops one by one, freeing each value after its last use; nothing is built."""
    interpreter = fx.Interpreter(graph_module)

    def run(inputs: list[object]) -> object:
        values = list(inputs)
        inputs.clear()
        with torch.no_grad():
            return interpreter.boxed_run(values)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
