"""Regions of ``torch.utils.checkpoint``: eager's gradients, recomputation by the partitioner, random draws replayed."""

import functools

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from precast._torch_compat import CHECKPOINT_GENERATOR
from precast.autograd import aot_function, default_partition, min_cut_rematerialization_partition
from precast.compilers import nop

WEIGHT = torch.randn(4, 4, requires_grad=True)


def block(x):
    return torch.nn.functional.dropout((x @ WEIGHT).tanh(), 0.5).sin()


def save_products(context, op, *args, **kwargs):
    is_product = op is torch.ops.aten.mm.default
    return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE


selective = functools.partial(create_selective_checkpoint_contexts, save_products)
PROGRAMS = {
    "plain": lambda x: checkpoint(block, x, use_reentrant=False).exp(),
    "reentrant": lambda x: checkpoint(block, x, use_reentrant=True).exp(),
    "selective": lambda x: checkpoint(block, x, use_reentrant=False, context_fn=selective).exp(),
}


def run(function, x):
    x.grad = WEIGHT.grad = None
    torch.manual_seed(0)
    output = function(x)
    output.sum().backward()
    return output.detach(), x.grad, WEIGHT.grad


def saved_names(program, partition):
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return graph

    compiled = aot_function(PROGRAMS[program], keep, partition_fn=partition)
    x = torch.randn(3, 4, requires_grad=True)
    expected = run(PROGRAMS[program], x)
    got = run(compiled, x)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    return [node.name for node in graphs[0].graph.output_node().args[0][1:]]


@pytest.mark.thinned
@pytest.mark.parametrize("partition", [default_partition, min_cut_rematerialization_partition])
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients_equal_eagers_bit_for_bit_with_dropout_inside(program, partition):
    saved_names(program, partition)


def test_values_inside_a_region_are_recomputed():
    saved = saved_names("plain", default_partition)
    assert not {"mm", "tanh", "div", "mul"} & set(saved)
    assert "bernoulli_rng_state" in saved, "the draw is replayed, not kept"


def test_a_selective_policy_says_what_is_saved():
    assert "mm" in saved_names("selective", default_partition)


def test_torch_checkpoints_as_before_after_tracing():
    before = getattr(torch.utils.checkpoint, CHECKPOINT_GENERATOR)
    saved_names("plain", default_partition)
    assert getattr(torch.utils.checkpoint, CHECKPOINT_GENERATOR) is before


@pytest.mark.filterwarnings("ignore:None of the inputs")
@pytest.mark.parametrize("is_needed", [False, True])
def test_reentrant_regions_hide_their_parameters_where_no_argument_requires_grad(is_needed):
    compiled = aot_function(PROGRAMS["reentrant"], nop)
    results = []
    for function in (PROGRAMS["reentrant"], compiled, compiled):
        WEIGHT.grad = None
        torch.manual_seed(0)
        result = function(torch.ones(3, 4, requires_grad=is_needed))
        if result.requires_grad:
            result.sum().backward()
        results.append((result.requires_grad, None if WEIGHT.grad is None else WEIGHT.grad.clone()))
    assert [needed for needed, _ in results] == [is_needed] * 3
    assert all((gradient is not None) is is_needed for _, gradient in results)
