"""The architectures that are measured, with random weights: a module that maps one tensor to logits, and its inputs.

Nothing is drawn at random while they run (dropout is off), so that every contender can be held against float64.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import transformers
from torch import nn

TOKENS, IMAGE, CLASSES = 128, 224, 1000
LATENT = 64


class Logits(nn.Module):
    """A model of ``transformers`` that gives its logits alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.model(inputs, return_dict=True).logits


class Residual(nn.Module):
    """Two convolutions beside a short cut."""

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(8, before), nn.SiLU(), nn.Conv2d(before, after, 3, padding=1),
            nn.GroupNorm(8, after), nn.SiLU(), nn.Conv2d(after, after, 3, padding=1),
        )  # fmt: skip
        self.short_cut = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.short_cut(inputs) + self.body(inputs)


class UNet(nn.Module):
    """Two steps down, two steps up, each step up joined with what lay on its level; group norm and SiLU between."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.enter = nn.Conv2d(4, width, 3, padding=1)
        self.down = nn.ModuleList(Residual(width << level, width << level) for level in range(2))
        self.halve = nn.ModuleList(nn.Conv2d(width << level, width << level + 1, 3, 2, 1) for level in range(2))
        self.middle = Residual(width << 2, width << 2)
        self.up = nn.ModuleList(Residual((width << level) * 3, width << level) for level in (1, 0))
        self.leave = nn.Conv2d(width, 4, 3, padding=1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        value, levels = self.enter(inputs), []
        for block, halve in zip(self.down, self.halve, strict=True):
            value = block(value)
            levels.append(value)
            value = halve(value)
        value = self.middle(value)
        for block in self.up:
            value = nn.functional.interpolate(value, scale_factor=2.0, mode="nearest")
            value = block(torch.cat((value, levels.pop()), dim=1))
        return self.leave(value)


@dataclass(frozen=True)
class Architecture:
    """How to make a model and one batch for it; to train it, every example has ``labels`` labels of ``classes``."""

    title: str
    make_model: Callable[[], nn.Module]
    make_inputs: Callable[[int], torch.Tensor]
    classes: int
    labels: int = 1

    def make_labels(self, batch: int) -> torch.Tensor:
        """One label for each row of logits."""
        return torch.randint(0, self.classes, (batch * self.labels,))


def _tokens(batch: int) -> torch.Tensor:
    return torch.randint(0, 1000, (batch, TOKENS))


def _images(batch: int) -> torch.Tensor:
    return torch.randn(batch, 3, IMAGE, IMAGE)


def _bert() -> nn.Module:
    config = transformers.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    # Labels for tokens: one label for the whole text would be too few numbers to judge errors by.
    return Logits(transformers.BertForTokenClassification(config))


def _gpt2() -> nn.Module:
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return Logits(transformers.GPT2LMHeadModel(config))


def _llama() -> nn.Module:
    config = transformers.LlamaConfig(
        hidden_size=512, intermediate_size=1376, num_hidden_layers=8, num_attention_heads=8, num_key_value_heads=4,
        use_cache=False,
    )  # fmt: skip
    return Logits(transformers.LlamaForCausalLM(config))


def _vit() -> nn.Module:
    return Logits(transformers.ViTForImageClassification(transformers.ViTConfig(num_labels=CLASSES)))


def _resnet50() -> nn.Module:
    return Logits(transformers.ResNetForImageClassification(transformers.ResNetConfig(num_labels=CLASSES)))


def _mobilenet() -> nn.Module:
    config = transformers.MobileNetV2Config(classifier_dropout_prob=0.0, num_labels=CLASSES)
    return Logits(transformers.MobileNetV2ForImageClassification(config))


def _convnext() -> nn.Module:
    return Logits(transformers.ConvNextForImageClassification(transformers.ConvNextConfig(num_labels=CLASSES)))


def _latents(batch: int) -> torch.Tensor:
    return torch.randn(batch, 4, LATENT, LATENT)


ARCHITECTURES = {
    "bert": Architecture("BERT-base", _bert, _tokens, classes=2, labels=TOKENS),
    "gpt2": Architecture("GPT-2", _gpt2, _tokens, classes=50257, labels=TOKENS),
    "llama": Architecture("small Llama", _llama, _tokens, classes=32000, labels=TOKENS),
    "vit": Architecture("ViT-B", _vit, _images, classes=CLASSES),
    "resnet50": Architecture("ResNet-50", _resnet50, _images, classes=CLASSES),
    "mobilenet": Architecture("MobileNetV2", _mobilenet, _images, classes=CLASSES),
    "convnext": Architecture("ConvNeXt-T", _convnext, _images, classes=CLASSES),
    "unet": Architecture("U-Net block", UNet, _latents, classes=4, labels=LATENT * LATENT),
}
