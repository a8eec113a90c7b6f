"""What a training step saves and recomputes at each memory budget."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from precast.autograd.variants.graphs import trace_joint
from precast.errors import InputValueError
from precast.partition.trade_off import BUDGETS, TradeOffCurve, trade_off_curve
from precast.trace.capture.prepare import prepare
from precast.trace.functionalize import analyze
from precast.trace.record import Decompositions
from precast.trace.session import tracing_session


def plan(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    budgets: Sequence[float] = BUDGETS,
    decompositions: Decompositions | None = None,
) -> TradeOffCurve:
    """Measure the trade-off of each memory budget: bytes saved (estimated and measured), FLOPs recomputed, peak memory.

    ``fn`` is a function or module whose result requires grad. The curve prints as a table and can be drawn as SVG.

    >>> import torch
    >>> x = torch.ones(64, 64, requires_grad=True)
    >>> curve = plan(lambda x: x.sin().exp().tanh().sum(), (x,), budgets=[1.0, 0.0])
    >>> curve.points[0].saved_bytes >= curve.points[1].saved_bytes
    True
    """
    with torch.enable_grad(), tracing_session():
        call = prepare(fn, args, kwargs)
        facts = analyze(call.flat, call.fake_inputs, call.fakes.mode)
        if not any(facts.tangents):
            raise InputValueError(
                "The function has no gradient to plan memory for.",
                why="none of its results requires grad",
                fix="Give inputs or parameters that require grad.",
            )
        traced = trace_joint(
            call.flat,
            call.fake_inputs,
            call.fakes,
            facts,
            decompositions=decompositions,
            module_names=call.module_names,
        )
    return trade_off_curve(
        traced.module,
        num_fwd_outputs=len(facts.tangents),
        budgets=budgets,
        primals=[*(item.tensor for item in call.state), *call.call.leaves],
        static_lifetime_input_indices=range(len(call.state)),
    )
