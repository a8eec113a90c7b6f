"""Expressions over sizes, computed without sympy: the same numbers as sympy's."""

import pytest
import sympy
from torch.utils._sympy.functions import (
    BitwiseFn_bitwise_and,
    BitwiseFn_bitwise_or,
    BitwiseFn_bitwise_xor,
    CeilDiv,
    CleanDiv,
    FloorDiv,
    FloorToInt,
    Max,
    Min,
    Mod,
    ModularIndexing,
    OpaqueUnaryFn_sqrt,
    PowByNatural,
    PythonMod,
    ToFloat,
    Where,
)

from precast.artifact.expressions import (
    check_expression,
    evaluate,
    expression_text,
    holds,
    solve,
    symbols_of,
    whole_number,
)
from precast.errors import ArtifactError, ExportError
from precast.graph.expressions import FUNCTION_NAMES, expression_from_json, expression_to_json

a, b = sympy.symbols("a b", integer=True, nonnegative=True)
EXPRESSIONS = [
    2 * a + 1, a * b - 3, a**2, a**2 * b + b**3, FloorDiv(a + 7, b + 1), CleanDiv(6 * a, 3), Mod(a, 4), CeilDiv(a, 3),
    PythonMod(a + b, 5), ModularIndexing(a, 2, 3), Max(a, b, 4), Min(a, 2 * b), FloorDiv(a, 2) * 2 + Mod(a, 2),
    Where(a > b, a, b), sympy.Max(1, a), sympy.Rational(1, 2) * a * (a + 1),
    BitwiseFn_bitwise_and(a, 3), BitwiseFn_bitwise_or(a, b), BitwiseFn_bitwise_xor(a, b),
    FloorToInt(OpaqueUnaryFn_sqrt(ToFloat(a))),
]  # fmt: skip
CONDITIONS = [
    sympy.Eq(a, b), sympy.Ne(a, 3), a < b, a <= 4, a > 2, a >= b, sympy.And(a > 1, b > 1), sympy.Or(a > 5, b > 5),
    sympy.Not(sympy.And(a > 2, b < 3)), sympy.Eq(Mod(a, 2), 0), sympy.true, sympy.false,
]  # fmt: skip
BINDINGS = [{"a": x, "b": y} for x in (0, 1, 2, 5, 12) for y in (0, 1, 3, 7)]


@pytest.mark.parametrize("expression", EXPRESSIONS, ids=str)
def test_numbers_are_those_of_sympy(expression):
    content = expression_to_json(expression)
    check_expression(content, {"a", "b"})
    for binding in BINDINGS:
        assert evaluate(content, binding) == int(expression.subs({a: binding["a"], b: binding["b"]}))


@pytest.mark.parametrize("condition", CONDITIONS, ids=str)
def test_conditions_hold_as_in_sympy(condition):
    content = expression_to_json(condition)
    check_expression(content, {"a", "b"})
    for binding in BINDINGS:
        assert holds(content, binding) == bool(condition.subs({a: binding["a"], b: binding["b"]}))


@pytest.mark.parametrize("name", sorted(FUNCTION_NAMES))
def test_every_function_that_programs_may_use_is_known(name):
    for count in (1, 2, 3):
        try:
            check_expression([name, *([1] * count)], set())
        except ArtifactError:
            continue
        return
    pytest.fail(f"{name} is not known here")


def test_sizes_are_read_off_what_is_linear_in_them():
    assert solve(["Add", 1, ["Mul", 2, "a"]], "a", 7, {}) == 3
    assert solve(["Add", "b", ["Mul", 2, "a"]], "a", 7, {"b": 1}) == 3
    assert solve(["Mul", 2, "a"], "a", 7, {}) is None
    assert solve(["Pow", "a", 2], "a", 9, {}) is None
    assert solve(["FloorDiv", 1, "a"], "a", 9, {}) is None


def test_a_condition_that_divides_by_zero_does_not_hold():
    assert not holds(["Eq", ["Mod", 3, "a"], 0], {"a": 0})


def test_what_is_no_whole_number_is_no_size():
    assert whole_number(["Mul", ["Rational", 1, 2], "a"], {"a": 4}) == 2
    with pytest.raises(ArithmeticError):
        whole_number(["Mul", ["Rational", 1, 2], "a"], {"a": 3})


def test_texts_read_as_people_write():
    content = ["Add", 1, ["Mul", 2, "s0"]]
    assert expression_text(content, {"s0": "batch"}) == "1 + 2*batch"
    assert expression_text(["FloorDiv", ["Add", "s0", 1], 2]) == "(s0 + 1) // 2"
    assert sorted(symbols_of(content)) == ["s0"]


@pytest.mark.parametrize(
    "content",
    [
        True, None, 1.5, {}, [], [1], ["exec", 1], ["Add"], ["Mod", 1], ["Mod", 1, 2, 3], "zz", ["Rational", 1, 0],
        ["Rational", "a", 2], ["Float", 1], [["Add"], 1], ["Max", *([1] * 2000)],
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_expression_is_refused(content):
    with pytest.raises(ArtifactError):
        check_expression(content, {"a"})


def test_deep_expressions_are_refused():
    content = 1
    for _ in range(1000):
        content = ["Add", content, 1]
    with pytest.raises(ArtifactError):
        check_expression(content, set())


def nested(make, depth):
    content = make("a")
    for _ in range(depth):
        content = make(content)
    return content


HOSTILE = {
    "a tower of powers": ["Pow", ["Pow", ["Pow", 64, 64], 64], 64],
    "a tower of rationals": nested(lambda inner: ["Pow", ["Mul", ["Rational", 3, 7], inner], 30], 20),
    "a negative tower": nested(lambda inner: ["Pow", inner, -60], 10),
    "an exponent that varies": ["Pow", 2, ["Pow", 2, ["Pow", 2, "a"]]],
    "a shift that varies": ["LShift", 1, "a"],
    "a huge shift": ["LShift", 1, 10**12],
    "a huge shift to the right": ["RShift", 1, 10**12],
    "a negative shift": ["LShift", 1, -1000],
    "a huge exponent": ["PowByNatural", "a", 10**12],
    "a huge rational exponent": ["Pow", "a", ["Rational", 1, 10**12]],
    "a huge float exponent": ["FloatPow", "a", ["Float", "0x1.8p+900"]],
    "many places": ["RoundDecimal", "a", 10**12],
    "a huge literal": ["Add", 10**400, 1],
    "a huge rational": ["Rational", 1, 10**400],
    "a huge product": ["Mul", *["a"] * 100],
    "a nested product": nested(lambda inner: ["Mul", inner, inner], 12),
    "many parts": nested(lambda inner: ["Add", inner, inner], 14),
    "a long sum": ["Add", *[1] * 1000],
    "a flag": ["Add", True, 1],
    "a rational of flags": ["Rational", True, 1],
    "text for a float": ["Float", "__import__('os')"],
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_expressions_that_could_become_huge_are_refused_before_they_are_computed(content):
    with pytest.raises(ArtifactError):
        check_expression(content, {"a"})
    with pytest.raises(ArtifactError):
        expression_from_json(content, {"a": a})


def test_what_could_not_be_read_again_is_not_written():
    with pytest.raises(ExportError, match="cannot be saved"):
        expression_to_json(PowByNatural(2, a))


def test_what_has_no_value_is_an_arithmetic_error():
    for content in (
        ["Piecewise", "a", 1], ["Max", ["ExprCondPair", 1, 2], 1], ["Pow", -8, ["Rational", 1, 3]],
        ["FloorDiv", "a", 0], ["Float", "inf"], ["floor", ["int_oo"]], ["IsNonOverlappingAndDenseIndicator", 1, 2, 3],
        ["Pow", ["Mul", "a", 2**63], 30],
    ):  # fmt: skip
        check_expression(content, {"a"})
        with pytest.raises(ArithmeticError):
            whole_number(["Add", content, 0], {"a": 2**62})
        assert not holds(["Lt", content, 0], {"a": 2**62})
