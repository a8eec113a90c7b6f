"""A memory budget is met, or refused with reasons; less budget never saves more."""

import re

import pytest
import torch
import torch.nn.functional as F

from precast.errors import MemoryBudgetError, OptionError
from precast.partition import explanation_of, min_cut_rematerialization_partition, trade_off_curve
from tests.partition import models
from tests.partition.joint_graphs import Joint, assert_halves_equal_joint, called, trace_joint

BUDGETS = [1.0, 0.9, 0.7, 0.5, 0.4, 0.3, 0.2, 0.1, 0.05, 0.0]


def partition(joint: Joint, memory_budget: float):
    return min_cut_rematerialization_partition(
        joint.module, [], num_fwd_outputs=joint.num_fwd_outputs, memory_budget=memory_budget
    )


def two_matmuls() -> Joint:
    return trace_joint(
        lambda x, w, v: F.gelu(x @ w).sin() @ v, torch.randn(32, 16), torch.randn(16, 64), torch.randn(64, 4)
    )


@pytest.mark.parametrize("model", [models.encoder_stack, models.gpt, models.unet])
def test_less_budget_never_saves_more(model):
    joint = model()
    curve = trade_off_curve(joint.module, num_fwd_outputs=joint.num_fwd_outputs, budgets=BUDGETS, primals=joint.primals)
    measured = [point.measured_saved_bytes for point in curve.points]
    assert measured == sorted(measured, reverse=True)
    assert measured == [point.saved_bytes for point in curve.points]
    flops = [point.recomputed_flops for point in curve.points]
    assert flops == sorted(flops)


@pytest.mark.parametrize("budget", [0.5, 0.2, 0.05, 0.0])
@pytest.mark.parametrize("model", [models.encoder_stack, models.gpt])
def test_results_stay_bit_equal_under_pressure(model, budget):
    joint = model()
    assert_halves_equal_joint(joint, *partition(joint, budget))


def test_fraction_within_reach_is_kept():
    forward, _ = partition(models.gpt(), 0.2)
    explanation = explanation_of(forward)
    assert explanation.saved_bytes <= 0.2 * explanation.default_bytes


def test_absolute_budget_recomputes_matmuls_to_fit():
    joint = two_matmuls()
    forward, backward = partition(joint, 4096)
    assert explanation_of(forward).saved_bytes <= 4096
    assert "mm" in called(backward)


def test_random_op_replays_its_draw_under_pressure():
    joint = trace_joint(lambda x: F.dropout(x, 0.5, True).sin(), torch.randn(256, 256))
    forward, backward = partition(joint, 0.0)
    assert_halves_equal_joint(joint, forward, backward)
    assert "native_dropout_rng_state" in [node.name for node in backward.graph.nodes]


def test_small_random_op_is_saved_since_a_generator_state_is_larger():
    joint = trace_joint(lambda x: F.dropout(x, 0.5, True).sin(), torch.randn(16))
    _, backward = partition(joint, 0.0)
    assert "native_dropout" not in called(backward)


def test_unreachable_bytes_are_refused_with_the_tensors_in_the_way():
    joint = trace_joint(lambda x: F.dropout(x, 0.5, True).sum(), torch.randn(64))
    with pytest.raises(MemoryBudgetError, match=r"(?s)stand in the way.*getitem_1: 64 bytes, draws random numbers"):
        partition(joint, 2)


@pytest.mark.parametrize("budget", [-0.5, 1.5, True, -4])
def test_budget_that_means_nothing_is_refused(budget):
    with pytest.raises(OptionError, match="neither a fraction nor a number of bytes"):
        partition(two_matmuls(), budget)


def test_curve_draws_itself():
    joint = two_matmuls()
    svg = trade_off_curve(joint.module, num_fwd_outputs=joint.num_fwd_outputs, budgets=[1.0, 0.0]).as_svg()
    assert svg.startswith("<svg")
    assert svg.count("<circle") == 2
    assert {"budget 1", "budget 0", "saved bytes", "recomputed FLOPs"} <= set(re.findall(r">([^<>]+)</text>", svg))
