"""A hundred steps of models as people train them end where eager's do."""

import pytest
import torch
import transformers

from tests.training.like_eager import assert_like_eager

STEPS = 100


def texts(rows=4, length=12):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 50, (rows, length), generator=generator) for _ in range(4)] * (STEPS // 4)


def images(rows=4, size=32):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, 3, size, size, generator=generator) for _ in range(4)] * (STEPS // 4)


def bert():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    return transformers.BertForSequenceClassification(config), texts(), lambda m, x: m(x, labels=x[:, 0] % 2).loss


def gpt():
    config = transformers.GPT2Config(vocab_size=50, n_positions=16, n_embd=32, n_layer=2, n_head=2)
    return transformers.GPT2LMHeadModel(config), texts(), lambda m, x: m(x, labels=x, use_cache=False).loss


def resnet():
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic")
    model = transformers.ResNetForImageClassification(config)
    return model, images(), lambda m, x: m(x).logits.square().mean()


def convnext():
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2)
    model = transformers.ConvNextForImageClassification(config)
    return model, images(), lambda m, x: m(x).logits.logsumexp(1).mean()


class Recurrent(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.recurrent, self.last = torch.nn.LSTM(4, 5, batch_first=True), torch.nn.Linear(5, 2)

    def forward(self, x):
        return self.last(self.recurrent(x)[0])


def test_recurrent_layers_train_as_in_eager():
    generator = torch.Generator().manual_seed(0)
    data = [torch.randn(3, 3, 4, generator=generator) for _ in range(3)]
    adam = lambda model: torch.optim.Adam(model.parameters(), lr=0.01)  # noqa: E731
    loss_fn = lambda model, x: (model(x) - x[..., :2]).square().mean()  # noqa: E731
    assert_like_eager(Recurrent(), adam, loss_fn, data=data, backend="nop", tolerance=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("make", [bert, gpt, resnet, convnext])
def test_a_hundred_steps_of_a_model_are_eagers(make):
    torch.manual_seed(0)
    model, data, loss_fn = make()
    assert_like_eager(
        model.train(),
        lambda model: torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9),
        loss_fn,
        data=data,
        tolerance=2e-4,
        seeded=True,
        grad_clip=1.0,
        schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
        options={"random": "eager"},
    )
