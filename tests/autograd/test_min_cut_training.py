"""The min cut through AOT autograd on what people train: less is saved, and gradients keep every bit."""

import copy
from functools import partial

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertModel, GPT2Config, GPT2Model, ResNetConfig, ResNetModel

from precast import aot_module, min_cut_rematerialization_partition
from precast.compilers import nop
from precast.partition import explanation_of


def bert(layers):
    config = BertConfig(
        num_hidden_layers=layers, hidden_size=64, num_attention_heads=4, intermediate_size=256, vocab_size=97
    )
    return BertModel(config, add_pooling_layer=False), torch.randint(0, 97, (2, 32))


def gpt(layers):
    config = GPT2Config(n_layer=layers, n_embd=64, n_head=4, vocab_size=97, use_cache=False)
    return GPT2Model(config), torch.randint(0, 97, (2, 32))


def resnet(depths):
    config = ResNetConfig(embedding_size=8, hidden_sizes=[16, 24, 32, 40][: len(depths)], depths=depths)
    return ResNetModel(config), torch.randn(2, 3, 64, 64)


class UNetBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.SiLU(), nn.Dropout(0.1))
        self.deep = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.SiLU())
        self.up = nn.ConvTranspose2d(32, 16, 2, stride=2)
        self.out = nn.Conv2d(32, 3, 3, padding=1)

    def forward(self, image):
        skip = self.down(image)
        return self.out(torch.cat([skip, self.up(self.deep(skip))], dim=1))


def unet():
    return UNetBlock(), torch.randn(2, 3, 32, 32)


def gradients(model, x):
    torch.manual_seed(1)
    output = model(x)
    loss = (output if isinstance(output, torch.Tensor) else output[0]).square().mean()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters()), *model.buffers()]


def assert_trains_alike(module, x, *, at_most):
    """Both ways give the same bits, and the cut saves at most this share of what the default partition saves."""
    explanations = []

    def partition(*args, **kwargs):
        halves = min_cut_rematerialization_partition(*args, **kwargs)
        explanations.append(explanation_of(halves[0]))
        return halves

    module.train()
    eager = copy.deepcopy(module)
    for got, expected in zip(
        gradients(aot_module(module, nop, partition_fn=partition), x), gradients(eager, x), strict=True
    ):
        assert (got is None and expected is None) or torch.equal(got, expected)
    (explanation,) = explanations
    assert explanation.saved_bytes <= at_most * explanation.default_bytes


QUICK = {"bert": (partial(bert, 2), 0.7), "gpt": (partial(gpt, 2), 0.7), "unet": (unet, 1.0)}
FULL = {
    "bert": (partial(bert, 12), 0.7),
    "gpt": (partial(gpt, 24), 0.7),
    "resnet": (partial(resnet, [3, 4, 6, 3]), 1.0),
}


@pytest.mark.parametrize("name", QUICK)
def test_gradients_keep_every_bit_and_less_is_saved(name):
    make, share = QUICK[name]
    torch.manual_seed(0)
    assert_trains_alike(*make(), at_most=share)


@pytest.mark.models
@pytest.mark.parametrize("name", FULL)
def test_deep_models_keep_every_bit_and_save_less(name):
    make, share = FULL[name]
    torch.manual_seed(0)
    assert_trains_alike(*make(), at_most=share)
