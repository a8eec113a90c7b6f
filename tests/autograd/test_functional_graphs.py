"""Joint graphs of real models hold no op that writes into its inputs, batch statistics included."""

import pytest
import torch
from transformers import ResNetConfig, ResNetModel

from precast import aot_module, default_partition
from precast.compilers import nop
from precast.ops.facts import is_mutating
from tests.models.zoo import ZOO


def joint_graph(module, *args, **kwargs):
    found = []

    def keep(joint, *others, **options):
        found.append(joint)
        return default_partition(joint, *others, **options)

    aot_module(module.train(), nop, partition_fn=keep)(*args, **kwargs)
    (joint,) = found
    return joint.graph


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_a_transformers_joint_graph_mutates_nothing(name):
    example = ZOO[name]()
    graph = joint_graph(example.module, *example.args, **example.kwargs)
    assert len(graph.nodes) > 100
    assert not [node for node in graph.nodes if is_mutating(node)]


def test_resnet_50s_joint_graph_mutates_nothing():
    config = ResNetConfig(embedding_size=4, hidden_sizes=[8, 16, 24, 32], depths=[3, 4, 6, 3])
    graph = joint_graph(ResNetModel(config), torch.randn(2, 3, 64, 64))
    norms = [node for node in graph.nodes if "batch_norm" in str(node.target) and "backward" not in str(node.target)]
    assert len(norms) == 53
    assert not [node for node in graph.nodes if is_mutating(node)]
