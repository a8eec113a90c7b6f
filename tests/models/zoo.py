"""Real architectures with random weights and small sizes, for every test that wants more than a toy.

``ZOO[name]()`` gives a fresh ``Example``: the module in eval mode, one call of it, and which of its sizes may change.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from precast.capture import Dim

DynamicShapes = dict[str, dict[int, Any] | None]

_LAYER_DROPPERS = {"BartEncoder", "BartDecoder", "WhisperEncoder", "WhisperDecoder", "Wav2Vec2Encoder"}


@dataclass(frozen=True)
class Example:
    """One model, one call, and the sizes of that call that may change; ``other_kwargs`` is a call of other sizes."""

    module: torch.nn.Module
    kwargs: dict[str, Any]
    dynamic_shapes: DynamicShapes
    other_kwargs: dict[str, Any]
    args: tuple[Any, ...] = ()

    def train(self, training: bool = True) -> "Example":
        """Switch the module to training or eval; whole layers are never dropped at random, as no graph can do that."""
        self.module.train(training)
        for module in self.module.modules():
            if type(module).__name__ in _LAYER_DROPPERS:
                module.training = False
        return self


ZOO: dict[str, Callable[[], Example]] = {}
QUICK = ("bert", "gpt2", "vit")
"""The few that the default tier runs: an encoder, a decoder, a vision model."""


def in_zoo(make: Callable[[], Example]) -> Callable[[], Example]:
    assert make.__name__ not in ZOO, f"{make.__name__} is in the zoo already"
    ZOO[make.__name__] = make
    return make


_TEXT = {"vocab_size": 97, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


_ENDS = {"bos_token_id": 1, "eos_token_id": 2}
_SPECIAL = {**_ENDS, "pad_token_id": 0, "cls_token_id": 1, "sep_token_id": 2}


def _example(module: torch.nn.Module, make_kwargs: Callable[..., dict[str, Any]], dynamic: DynamicShapes) -> Example:
    return Example(module.eval(), make_kwargs(2, 12), dynamic, make_kwargs(3, 9))


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(3, 97, (batch, length), generator=torch.Generator().manual_seed(batch * length))


def _text_kwargs(batch: int, length: int) -> dict[str, Any]:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return {"input_ids": _tokens(batch, length), "attention_mask": mask}


def _text(module: torch.nn.Module) -> Example:
    batch, length = Dim("batch", max=64), Dim("length", max=64)
    return _example(module, _text_kwargs, {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")})


def _causal_text(module: torch.nn.Module) -> Example:
    # A cache of keys and values is an object of its own; here only the forward pass is of interest.
    module.config.use_cache = False
    return _text(module)


def _images(batch: int, _: int) -> dict[str, Any]:
    return {"pixel_values": torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(batch))}


def _vision(module: torch.nn.Module) -> Example:
    return _example(module, _images, {"pixel_values": {0: Dim("batch", max=64)}})


def _pairs(batch: int, length: int) -> dict[str, Any]:
    return {**_text_kwargs(batch, length), "decoder_input_ids": _tokens(batch, length + 2), "use_cache": False}


def _text_to_text(module: torch.nn.Module) -> Example:
    batch, length = Dim("batch", max=64), Dim("length", max=60)
    sizes: DynamicShapes = {name: {0: batch, 1: length} for name in ("input_ids", "attention_mask")}
    return _example(module, _pairs, {**sizes, "decoder_input_ids": {0: batch, 1: length + 2}})


@in_zoo
def bert() -> Example:
    return _text(transformers.BertModel(transformers.BertConfig(**_TEXT, max_position_embeddings=64)))


@in_zoo
def roberta() -> Example:
    return _text(transformers.RobertaModel(transformers.RobertaConfig(**_TEXT, max_position_embeddings=80)))


@in_zoo
def modernbert() -> Example:
    config = transformers.ModernBertConfig(**_TEXT, max_position_embeddings=64, local_attention=8, **_SPECIAL)
    return _text(transformers.ModernBertModel(config))


@in_zoo
def gpt2() -> Example:
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, **_ENDS)
    return _causal_text(transformers.GPT2LMHeadModel(config))


@in_zoo
def llama() -> Example:
    return _causal_text(transformers.LlamaForCausalLM(transformers.LlamaConfig(**_TEXT, num_key_value_heads=2)))


@in_zoo
def mistral() -> Example:
    config = transformers.MistralConfig(**_TEXT, num_key_value_heads=2, sliding_window=8)
    return _causal_text(transformers.MistralForCausalLM(config))


@in_zoo
def qwen2() -> Example:
    return _causal_text(transformers.Qwen2ForCausalLM(transformers.Qwen2Config(**_TEXT, num_key_value_heads=2)))


@in_zoo
def t5() -> Example:
    config = transformers.T5Config(vocab_size=97, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return _text_to_text(transformers.T5ForConditionalGeneration(config))


@in_zoo
def bart() -> Example:
    config = transformers.BartConfig(
        vocab_size=97, d_model=32, max_position_embeddings=64,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64,
    )  # fmt: skip
    return _text_to_text(transformers.BartForConditionalGeneration(config))


@in_zoo
def vit() -> Example:
    sizes = {key: value for key, value in _TEXT.items() if key != "vocab_size"}
    return _vision(transformers.ViTModel(transformers.ViTConfig(**sizes, image_size=32, patch_size=8)))


@in_zoo
def swin() -> Example:
    config = transformers.SwinConfig(
        image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4
    )
    return _vision(transformers.SwinModel(config))


@in_zoo
def convnext() -> Example:
    config = transformers.ConvNextConfig(hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1], drop_path_rate=0.1)
    return _vision(transformers.ConvNextModel(config))


@in_zoo
def resnet() -> Example:
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 2, 1])
    return _vision(transformers.ResNetForImageClassification(config))


@in_zoo
def mobilenet_v2() -> Example:
    return _vision(transformers.MobileNetV2Model(transformers.MobileNetV2Config(image_size=32, depth_multiplier=0.25)))


@in_zoo
def whisper() -> Example:
    config = transformers.WhisperConfig(
        vocab_size=97, d_model=32, num_mel_bins=16, max_source_positions=20, max_target_positions=64,
        encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
        encoder_ffn_dim=64, decoder_ffn_dim=64,
        pad_token_id=0, decoder_start_token_id=1, use_cache=False, **_ENDS,
    )  # fmt: skip
    batch, length = Dim("batch", max=64), Dim("length", max=64)

    def speech_and_text(size: int, tokens: int) -> dict[str, Any]:
        # Whisper takes spectrograms of one fixed length: twice the encoder's positions.
        features = torch.randn(size, 16, 40, generator=torch.Generator().manual_seed(size))
        return {"input_features": features, "decoder_input_ids": _tokens(size, tokens)}

    sizes: DynamicShapes = {"input_features": {0: batch}, "decoder_input_ids": {0: batch, 1: length}}
    return _example(transformers.WhisperForConditionalGeneration(config), speech_and_text, sizes)


@in_zoo
def wav2vec2() -> Example:
    sizes = {key: value for key, value in _TEXT.items() if key != "vocab_size"}
    config = transformers.Wav2Vec2Config(
        **sizes, conv_dim=[16, 16, 16], conv_stride=[5, 2, 2], conv_kernel=[10, 3, 3],
        num_feat_extract_layers=3, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=4,
        layerdrop=0.0, apply_spec_augment=False,
    )  # fmt: skip

    def waves(batch: int, length: int) -> dict[str, Any]:
        return {"input_values": torch.randn(batch, length * 50, generator=torch.Generator().manual_seed(batch))}

    dynamic: DynamicShapes = {"input_values": {0: Dim("batch", max=64), 1: Dim("samples", min=200, max=4000)}}
    return _example(transformers.Wav2Vec2Model(config), waves, dynamic)
