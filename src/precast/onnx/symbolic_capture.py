"""From a model to a program by symbolic tracing: no data is needed, and a model on the meta device will do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from precast.ir.program import Program
from precast.onnx.rules import RuleTable


def capture_symbolic(
    model: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    dynamic_shapes: Any,
    rules: RuleTable,
) -> Program:
    raise AssertionError
