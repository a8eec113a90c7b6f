"""Checkpoint regions and selective policies are honoured by both partitions."""

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import CheckpointPolicy

from precast.partition import default_partition, min_cut_rematerialization_partition
from tests.partition.joint_graphs import Joint, assert_halves_equal_joint, called, saved_names, trace_joint

PARTITIONS = [default_partition, min_cut_rematerialization_partition]


def block(x, w, v):
    return F.dropout(F.gelu(x @ w), 0.5, True) @ v + x


def two_blocks(x, w, v):
    return block(block(x, w, v), w, v).sin()


def trace() -> Joint:
    return trace_joint(two_blocks, torch.randn(64, 64), torch.randn(64, 128), torch.randn(128, 64))


def mark(joint: Joint, policies: dict[str, CheckpointPolicy], region: int) -> None:
    for node in joint.module.graph.nodes:
        if node.name in policies:
            node.meta.update(recompute=policies[node.name], ac_graph_id=region)


def region(*names: str) -> dict[str, CheckpointPolicy]:
    return dict.fromkeys(names, CheckpointPolicy.PREFER_RECOMPUTE)


FIRST = region("mm", "gelu", "native_dropout", "getitem", "getitem_1", "mm_1", "add")
SECOND = region("mm_2", "gelu_1", "native_dropout_1", "getitem_2", "getitem_3", "mm_3", "add_1")


@pytest.mark.parametrize("partition", PARTITIONS)
def test_regions_save_their_inputs_only(partition):
    joint = trace()
    mark(joint, FIRST, 1)
    mark(joint, SECOND, 2)
    forward, backward = partition(joint.module, [], num_fwd_outputs=1)
    assert_halves_equal_joint(joint, forward, backward)
    saved = set(saved_names(forward, 1))
    assert "add" in saved
    assert saved.isdisjoint({"mm", "gelu", "getitem", "getitem_1", "mm_2", "gelu_1", "getitem_2", "getitem_3"})


@pytest.mark.parametrize("partition", PARTITIONS)
def test_dropout_inside_a_region_replays_its_draw(partition):
    joint = trace()
    mark(joint, FIRST, 1)
    forward, backward = partition(joint.module, [], num_fwd_outputs=1)
    assert_halves_equal_joint(joint, forward, backward)
    assert "native_dropout_rng_state" in saved_names(forward, 1)
    assert "native_dropout" in called(backward)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_policy_keeps_what_must_be_saved(partition):
    joint = trace()
    mark(joint, {**FIRST, "mm": CheckpointPolicy.MUST_SAVE}, 1)
    forward, backward = partition(joint.module, [], num_fwd_outputs=1)
    assert_halves_equal_joint(joint, forward, backward)
    assert "mm" in saved_names(forward, 1)
    assert "mm" not in called(backward)


def test_policy_that_prefers_saving_gives_way_to_a_budget():
    joint = trace()
    mark(joint, {"gelu": CheckpointPolicy.PREFER_SAVE}, 1)
    plain = min_cut_rematerialization_partition(joint.module, [], num_fwd_outputs=1)
    pressed = min_cut_rematerialization_partition(joint.module, [], num_fwd_outputs=1, memory_budget=0.0)
    assert "gelu" not in called(plain[1])
    assert "gelu" in called(pressed[1])
    assert_halves_equal_joint(joint, *pressed)
