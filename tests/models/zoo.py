"""Real architectures with random weights and small sizes, for every test that wants more than a toy.

``ZOO[name]()`` gives a fresh ``Example``: the module in eval mode, one call of it, and which of its sizes may change.
The few architectures here are those that tests of single stages run; ``tests.models.sweep`` judges all there are.
"""

import functools
from collections.abc import Callable

from tests.models.architectures import Example, make_architecture

_NAMES = (
    "bert", "roberta", "modernbert", "gpt2", "llama", "mistral", "qwen2", "t5", "bart",
    "vit", "swin", "convnext", "resnet", "mobilenet_v2", "whisper", "wav2vec2",
)  # fmt: skip
ZOO: dict[str, Callable[[], Example]] = {
    name: functools.partial(make_architecture, f"transformers/{name}") for name in _NAMES
}
QUICK = ("bert", "gpt2", "vit")
"""The few that the default tier runs: an encoder, a decoder, a vision model."""
