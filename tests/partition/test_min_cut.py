"""The minimum cut saves little, recomputes what is cheap, and changes no result."""

import pytest
import torch
import torch.nn.functional as F

from precast.partition import default_partition, explanation_of, min_cut_rematerialization_partition
from precast.partition.trade_off import measured_saved_bytes
from tests.partition import models
from tests.partition.joint_graphs import assert_halves_equal_joint, called, placeholder_names, saved_names, trace_joint

SMALL_MODELS = [models.encoder_stack, models.gpt, models.bert, models.resnet, models.unet]
TRANSFORMERS = [models.encoder_stack, models.gpt, models.bert]


def partition(joint, **options):
    return min_cut_rematerialization_partition(joint.module, [], num_fwd_outputs=joint.num_fwd_outputs, **options)


def measured(joint, forward):
    return measured_saved_bytes(forward, joint.primals, num_fwd_outputs=joint.num_fwd_outputs)


def measured_default(joint):
    forward, _ = default_partition(joint.module, [], num_fwd_outputs=joint.num_fwd_outputs)
    return measured(joint, forward)


@pytest.mark.parametrize("model", SMALL_MODELS)
def test_halves_together_equal_the_joint_graph(model):
    joint = model()
    assert_halves_equal_joint(joint, *partition(joint))


@pytest.mark.parametrize("model", SMALL_MODELS)
def test_saves_no_more_than_the_default(model):
    joint = model()
    forward, _ = partition(joint)
    assert measured(joint, forward) <= measured_default(joint)


@pytest.mark.parametrize("model", TRANSFORMERS)
def test_transformers_save_at_least_30_percent_less(model):
    joint = model()
    forward, _ = partition(joint)
    assert measured(joint, forward) <= 0.7 * measured_default(joint)


@pytest.mark.parametrize("model", SMALL_MODELS)
def test_bytes_told_are_bytes_measured(model):
    joint = model()
    forward, _ = partition(joint)
    assert explanation_of(forward).saved_bytes == measured(joint, forward)
    assert explanation_of(forward).default_bytes == measured_default(joint)


@pytest.mark.parametrize("reduce", [torch.amax, torch.amin])
def test_what_is_compared_with_its_own_maximum_is_not_computed_again(reduce):
    def function(x):
        total = (x.sum(1) * 1.7).unsqueeze(1)
        return reduce(total, (0, 2)), total.exp()

    joint = trace_joint(function, torch.randn(2, 3, 11))
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert "eq" in called(forward) + called(backward)
    assert not {"sum", "mul"} & {op.name for op in explanation_of(forward).recomputed}


@pytest.mark.models
@pytest.mark.parametrize(
    "model",
    [
        lambda: models.bert(layers=12, width=64, length=32),
        lambda: models.gpt(layers=24, width=64, length=32),
        lambda: models.resnet((3, 4, 6, 3), "bottleneck"),
    ],
    ids=["bert-12", "gpt-24", "resnet-50"],
)
def test_deep_models_equal_the_joint_graph_and_save_less(model):
    joint = model()
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert measured(joint, forward) <= measured_default(joint)


def test_cheap_op_between_matmuls_is_recomputed():
    joint = trace_joint(lambda x, w, v: F.gelu(x @ w) @ v, torch.randn(4, 6), torch.randn(6, 8), torch.randn(8, 2))
    forward, backward = partition(joint)
    assert saved_names(forward, 1) == ["primals_1", "primals_2", "primals_3", "mm"]
    assert "gelu" in called(backward)


def test_matmul_is_not_recomputed():
    joint = trace_joint(lambda x, w: (x @ w).sin().cos(), torch.randn(4, 6), torch.randn(6, 8))
    forward, _ = partition(joint)
    assert "mm" in saved_names(forward, 1)


def test_work_of_the_backward_stays_there_unless_moving_it_saves_bytes():
    joint = trace_joint(lambda x, w: (x @ w).sin(), torch.randn(4, 6), torch.randn(6, 8))
    forward, backward = partition(joint)
    assert called(forward) == ["mm", "sin"]
    assert "cos" in called(backward)


def test_two_views_of_one_tensor_are_saved_as_their_base():
    joint = trace_joint(
        lambda x, w: (lambda y: (y.view(24, 1) @ w[:1]).sum() + (y.t() @ y).sum())(x.exp() @ w),
        torch.randn(4, 6),
        torch.randn(6, 6),
    )
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert [name for name in saved_names(forward, 1) if not name.startswith("primals")] == ["mm"]


def test_reduction_is_saved_rather_than_run_again():
    joint = trace_joint(lambda x: x.exp() * x.exp().sum(1, keepdim=True), torch.randn(8, 64))
    forward, _ = partition(joint)
    assert "sum_1" in saved_names(forward, 1)


def test_dropout_saves_its_mask_only():
    joint = trace_joint(lambda x, w: F.dropout(x, 0.3, True) @ w, torch.randn(64, 64), torch.randn(64, 8))
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert [name for name in saved_names(forward, 1) if not name.startswith("primals")] == ["getitem_1"]


def test_half_precision_dropout_saves_its_result():
    joint = trace_joint(
        lambda x, w: F.dropout(x, 0.3, True) @ w, torch.randn(8, 8).bfloat16(), torch.randn(8, 8).bfloat16()
    )
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    assert "getitem" in saved_names(forward, 1)


def test_long_chain_is_saved_every_now_and_then():
    def chain(x):
        for _ in range(60):
            x = x.sin()
        return x

    joint = trace_joint(chain, torch.randn(8))
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    saved = [name for name in saved_names(forward, 1) if not name.startswith("primals")]
    assert 2 <= len(saved) <= 4


def test_symbolic_sizes_come_first_in_the_backward():
    joint = trace_joint(lambda x, w: x.sum(0) + F.gelu(w), torch.randn(4, 6), torch.randn(6), dynamic=True)
    forward, backward = partition(joint)
    assert_halves_equal_joint(joint, forward, backward)
    symbolic = [isinstance(node.meta["val"], torch.SymInt) for node in backward.graph.find_nodes(op="placeholder")]
    assert any(symbolic)
    assert symbolic == sorted(symbolic, reverse=True)


def test_input_with_a_short_life_counts_and_is_not_saved_for_free():
    def narrow_then_wide(x):
        return x.sum(1, keepdim=True).exp().expand(4, 64) * 2

    joint = trace_joint(narrow_then_wide, torch.randn(4, 64))
    _, backward = partition(joint, static_lifetime_input_indices=[])
    assert "primals_1" not in placeholder_names(backward)


def test_control_flow_carries_its_branches_over():
    joint = trace_joint(
        lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x.exp(),)).exp(), torch.randn(4)
    )
    assert_halves_equal_joint(joint, *partition(joint))


def test_every_saved_tensor_and_recomputed_op_has_a_reason():
    forward, backward = partition(models.gpt())
    explanation = explanation_of(forward)
    assert {tensor.name for tensor in explanation.saved} == set(placeholder_names(backward)) - {"tangents_1"}
    assert all(tensor.reason for tensor in explanation.saved)
    assert {op.name for op in explanation.recomputed} <= set(called(backward))
    assert "recomputed:" in explanation.as_table()
