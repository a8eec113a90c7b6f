"""Within a loop, bfloat16 values stay in single precision, which they are computed in, between operators.

Before: ``y = bf16(exp(f32(add := bf16(f32(a) + f32(b)))))``
After:  ``y = bf16(exp(add := f32(a) + f32(b)))``

With fewer roundings, results are closer to the exact ones than eager's. Roundings that the user's program asks for are
kept, and those before discontinuous operations: whether two rounded numbers are equal depends on their rounding. So
are those before differences: a mean may be one of rounded numbers, and equal numbers must cancel exactly. float16 is
unchanged: its range is smaller, and a number that overflows must do so.
"""

from __future__ import annotations

from dataclasses import replace

from precast.native.loops.program import Kernel, Loop, LoopProgram, Statement, rewrite_statement, with_steps
from precast.native.loops.scalars import Apply, Cast, Named, Scalar

SMOOTH = frozenset({
    "abs", "add", "cos", "div", "erf", "erfc", "exp", "expm1", "log", "log1p", "maximum", "minimum", "mul", "neg",
    "pow", "rsqrt", "sigmoid", "sin", "sqrt", "tanh", "where",
})  # fmt: skip
"""Operations whose results change little when their arguments change little."""


def keep_single_precision(program: LoopProgram) -> LoopProgram:
    """Let smooth operations read the unrounded value of what the same loop rounded to bfloat16."""
    buffers = (*program.inputs, *program.outputs, *program.temporaries)
    if not any(buffer.dtype == "bf16" for buffer in buffers):
        return program
    return with_steps(
        program, [_unrounded_kernel(step) if isinstance(step, Kernel) else step for step in program.steps]
    )


def _unrounded_kernel(kernel: Kernel) -> Kernel:
    changes = _Unrounding()
    return replace(kernel, body=tuple(map(changes.statement, kernel.body)))


class _Unrounding:
    """Rewrites the statements of one kernel; shared values remain shared."""

    def __init__(self) -> None:
        self.rewritten: dict[int, Scalar] = {}
        self.unrounded: dict[int, Scalar] = {}

    def statement(self, statement: Statement) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, body=tuple(map(self.statement, statement.body)))
        return rewrite_statement(statement, self.change, self.rewritten)

    def change(self, value: Scalar) -> Scalar:
        if not isinstance(value, Apply) or value.operation not in SMOOTH:
            return value
        arguments = tuple(map(self.before_rounding, value.arguments))
        same = all(before is after for before, after in zip(value.arguments, arguments, strict=True))
        return value if same else replace(value, arguments=arguments)

    def before_rounding(self, argument: Scalar) -> Scalar:
        """The value before it was rounded and widened again; otherwise the argument itself."""
        if not isinstance(argument, Cast) or argument.dtype != "f32":
            return argument
        rounded = argument.value
        if id(rounded) not in self.unrounded:
            self.unrounded[id(rounded)] = _unrounded(rounded) or argument
        return self.unrounded[id(rounded)]


def _unrounded(value: Scalar) -> Scalar | None:
    """The operand of a rounding that only an operator's result type requires; None for other values."""
    match value:
        case Named(name, inner):
            before = _unrounded(inner)
            return None if before is None else Named(name, before)
        case Cast(inner, "bf16", False) if inner.dtype == "f32":
            return inner
    return None
