"""Whatever small program is differentiated, its partitions are valid and change no result."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from precast.partition import default_partition, explanation_of, min_cut_rematerialization_partition, trade_off_curve
from tests.partition.joint_graphs import assert_halves_equal_joint, trace_joint

UNARY = [
    torch.sin,
    torch.exp,
    torch.relu,
    lambda x: x.t().contiguous(),
    lambda x: x.reshape(-1)[:16].view(4, 4),
    lambda x: x[:, :2].repeat(1, 2),
    lambda x: x.sum(1, keepdim=True).expand(4, 4),
    lambda x: torch.softmax(x, 1),
    lambda x: F.layer_norm(x, [4]),
    lambda x: F.dropout(x, 0.5, True),
    lambda x: torch.cat(x.split(2, 1)[::-1], 1),
    lambda x: x + torch.rand_like(x),
]
BINARY = [torch.add, torch.mul, torch.matmul, torch.maximum]

step = st.tuples(st.integers(0, len(UNARY) + len(BINARY) - 1), st.integers(0, 99), st.integers(0, 99))


def program(steps):
    def run(x, y):
        values = [x, y]
        for choice, first, second in steps:
            one, other = values[first % len(values)], values[second % len(values)]
            if choice < len(UNARY):
                values.append(UNARY[choice](one))
            else:
                values.append(BINARY[choice - len(UNARY)](one, other))
        return values[-1] * 1, values[len(values) // 2] * x

    return run


def check(steps, budget, dynamic):
    joint = trace_joint(program(steps), torch.randn(4, 4), torch.randn(4, 4), dynamic=dynamic)
    count = joint.num_fwd_outputs
    assert_halves_equal_joint(joint, *default_partition(joint.module, [], num_fwd_outputs=count))
    halves = min_cut_rematerialization_partition(joint.module, [], num_fwd_outputs=count, memory_budget=budget)
    assert_halves_equal_joint(joint, *halves)
    explanation = explanation_of(halves[0])
    assert explanation.saved_bytes <= explanation.default_bytes
    points = trade_off_curve(joint.module, num_fwd_outputs=count, budgets=[1.0, 0.7, 0.4, 0.2, 0.0]).points
    saved = [point.saved_bytes for point in points]
    assert saved == sorted(saved, reverse=True)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, min_size=1, max_size=12), st.sampled_from([1.0, 0.5, 0.0]))
def test_partition_of_any_small_program_is_valid(steps, budget):
    check(steps, budget, dynamic=False)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, min_size=1, max_size=30), st.sampled_from([1.0, 0.5, 0.2, 0.0]), st.booleans())
def test_partition_of_many_larger_programs_is_valid(steps, budget, dynamic):
    check(steps, budget, dynamic)
