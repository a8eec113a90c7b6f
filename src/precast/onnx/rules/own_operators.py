"""Operators of Precast's own, which capture substitutes for some of torch's.

Before: ``grouped_rows(rows[s, k], matrices[g, k, n], ends[g])``, what a mixture of experts computes
After:  a ``Loop`` over the groups that appends the products of each; rows in no group are zeros
"""

import math
from typing import Any

import onnx_ir as ir

from precast.onnx.rules.loops import loop, scan
from precast.onnx.rules.opsets import integer, integers, number, op
from precast.onnx.rules.registry import rule

_INT64 = ir.DataType.INT64


@rule("precast::grouped_rows")
def grouped_rows(rows: Any, matrices: Any, ends: Any) -> Any:
    ends = op.Cast(ends, to=_INT64)
    starts = op.Concat(integers(0), op.Slice(ends, integers(0), integers(-1), integers(0)), axis=0)

    def step(group: Any, done: Any) -> list[Any]:
        place = op.Unsqueeze(group, integers(0))
        own = op.Slice(rows, op.Gather(starts, place), op.Gather(ends, place), integers(0))
        return [op.Concat(done, op.MatMul(own, op.Gather(matrices, group, axis=0)), axis=0)]

    width = op.Shape(matrices, start=2)
    (products,) = loop(step, op.Squeeze(op.Shape(ends)), [_zeros(op.Concat(integers(0), width, axis=0), rows)])
    missing = op.Sub(op.Shape(rows, end=1), op.Shape(products, end=1))
    return op.Concat(products, _zeros(op.Concat(missing, width, axis=0), rows), axis=0)


@rule("precast::grouped_sums")
def grouped_sums(left: Any, right: Any, ends: Any) -> Any:
    """The products of all rows, with zeros in place of other groups' rows."""
    ends = op.Cast(ends, to=_INT64)
    starts = op.Concat(integers(0), op.Slice(ends, integers(0), integers(-1), integers(0)), axis=0)
    row = op.Range(integer(0), op.Squeeze(op.Shape(left, end=1)), integer(1))
    starts, ends = (op.Unsqueeze(each, integers(1)) for each in (starts, ends))
    is_own = op.And(op.GreaterOrEqual(row, starts), op.Less(row, ends))
    kept = op.Mul(op.Transpose(left, perm=[1, 0]), op.Unsqueeze(op.CastLike(is_own, left), integers(1)))
    return op.MatMul(kept, right)


@rule("precast::checked")
def checked(value: Any, is_wrong: Any, error: str, message: str) -> Any:
    """The value unchecked: ONNX models cannot raise errors."""
    return op.Identity(value)


@rule("precast::ctc")
def ctc(
    log_probabilities: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int,
    zero_infinity: bool,
    wants_slope: bool,
) -> Any:
    """Losses alone: logarithms of the sums over all alignments, one time step after the other."""
    target_lengths, input_lengths = (op.Cast(each, to=_INT64) for each in (target_lengths, input_lengths))
    # Past the end of a row, targets are arbitrary.
    classes = op.Squeeze(op.Shape(log_probabilities, start=2))
    rows = op.Max(op.Min(_padded(targets, target_lengths), op.Sub(classes, integer(1))), integer(0))
    labels = _with_blanks(rows, blank)
    states = op.Shape(labels, start=1)
    state = op.Range(integer(0), op.Squeeze(states), integer(1))
    nothing = number(-math.inf, log_probabilities)
    # A label may follow the one before it without a blank if they differ.
    earlier = op.Concat(op.Slice(labels, integers(0), integers(2), integers(1)), labels, axis=1)
    earlier = op.Slice(earlier, integers(0), states, integers(1))
    may_skip = op.And(op.Not(op.Equal(labels, earlier)), op.Greater(state, integer(1)))
    first = op.Less(state, integer(2))
    times = op.Range(integer(0), op.Squeeze(op.Shape(log_probabilities, end=1)), integer(1))
    begin = op.Where(op.Equal(state, integer(0)), number(0, log_probabilities), nothing)
    begin = op.Expand(begin, op.Shape(labels))
    input_lengths = op.Unsqueeze(input_lengths, integers(1))

    def step(alpha: Any, now: Any, time: Any) -> tuple[list[Any], list[Any]]:
        by_one, by_two = (_moved(alpha, places, nothing) for places in (1, 2))
        by_two = op.Where(may_skip, by_two, nothing)
        total = _log_sum(alpha, by_one, by_two, nothing)
        # Before the first step, only the first blank and the first label are reachable.
        start = op.Where(first, number(0, log_probabilities), nothing)
        total = op.Where(op.Equal(time, integer(0)), start, total)
        following = op.Add(total, op.GatherElements(now, labels, axis=1))
        return [op.Where(op.Less(time, input_lengths), following, alpha)], []

    (alpha,) = scan(step, [begin], [(log_probabilities, 0), (times, 0)], output_axis=0)
    end = op.Mul(op.Unsqueeze(target_lengths, integers(1)), integer(2))
    last = op.GatherElements(alpha, end, axis=1)
    before = op.GatherElements(alpha, op.Max(op.Sub(end, integer(1)), integer(0)), axis=1)
    before = op.Where(op.Greater(end, integer(0)), before, nothing)
    loss = op.Neg(op.Squeeze(_log_sum(last, before, nothing, nothing), integers(1)))
    if zero_infinity:
        loss = op.Where(op.IsInf(loss), number(0, loss), loss)
    return loss, None


def _zeros(shape: Any, like: Any) -> Any:
    zeros = op.ConstantOfShape(shape, value=ir.tensor([0], dtype=like.dtype))
    zeros.dtype = like.dtype
    return zeros


def _padded(targets: Any, lengths: Any) -> Any:
    """Targets as rows of one length; concatenated ones are read from each row's start."""
    wide = op.Cast(targets, to=_INT64)
    if len(targets.shape) == 2:
        return wide
    longest = op.Squeeze(op.Shape(wide))
    starts = op.Unsqueeze(op.Sub(op.CumSum(lengths, integer(0)), lengths), integers(1))
    place = op.Add(starts, op.Range(integer(0), longest, integer(1)))
    return op.Gather(wide, op.Min(place, op.Sub(longest, integer(1))), axis=0)


def _with_blanks(rows: Any, blank: int) -> Any:
    """Blanks between all labels and at both ends."""
    between = op.Expand(integer(blank), op.Shape(rows))
    pairs = op.Concat(op.Unsqueeze(between, integers(2)), op.Unsqueeze(rows, integers(2)), axis=2)
    flat = op.Reshape(pairs, op.Concat(op.Shape(rows, end=1), integers(-1), axis=0))
    end = op.Expand(integer(blank), op.Concat(op.Shape(rows, end=1), integers(1), axis=0))
    return op.Concat(flat, end, axis=1)


def _moved(alpha: Any, places: int, nothing: Any) -> Any:
    """Each state's value, shifted by one or two states."""
    column = op.Expand(nothing, op.Concat(op.Shape(alpha, end=1), integers(places), axis=0))
    return op.Concat(column, op.Slice(alpha, integers(0), integers(-places), integers(1)), axis=1)


def _log_sum(first: Any, second: Any, third: Any, nothing: Any) -> Any:
    """The logarithm of a sum of exponentials; minus infinity if all are."""
    largest = op.Max(first, second, third)
    safe = op.Where(op.Equal(largest, nothing), number(0, nothing), largest)
    total = op.Sum(*(op.Exp(op.Sub(each, safe)) for each in (first, second, third)))
    return op.Add(op.Log(total), safe)
