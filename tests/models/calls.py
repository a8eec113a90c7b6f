"""Example calls of models, made from the names of what ``forward`` takes and from the configuration.

``first_call_that_runs(module, config)`` tries the fullest call first: what a configuration means by its sizes is not
always told by their names, so several layouts of an input may be tried before eager takes one.
"""

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from precast.trace.capture import Dim
from precast.trace.capture.dynamic_shapes import DerivedDim

Call = dict[str, Any]
MakeCall = Callable[[int, int], Call]
"""Batch size and length of text → a call."""


def _field(config: Any, *names: str, default: Any) -> Any:
    """The first of the fields that a configuration or one of those inside it has."""
    nested = [value for value in vars(config).values() if hasattr(value, "model_type")]
    for candidate in [config, *nested]:
        for name in names:
            if (value := getattr(candidate, name, None)) is not None:
                return value
    return default


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def _tokens(batch: int, length: int) -> torch.Tensor:
    return torch.randint(5, 50, (batch, length), generator=torch.Generator().manual_seed(batch * length))


def _mask(batch: int, length: int) -> torch.Tensor:
    mask = torch.ones(batch, length, dtype=torch.int64)
    mask[-1, length // 2 :] = 0
    return mask


def _height_and_width(config: Any) -> tuple[int, int]:
    size = _field(config, "image_size", "img_size", "input_size", default=32)
    if isinstance(size, dict):
        size = size.get("height", 32), size.get("width", 32)
    if isinstance(size, list | tuple):
        return (size[0], size[-1])
    return size, size


def _images(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    channels = _field(config, "num_channels", "in_channels", "in_chans", "num_input_channels", default=3)
    height, width = _height_and_width(config)
    frames = _field(config, "num_frames", "frames_per_clip", default=4)
    clips = [_random(batch, frames, channels, height, width), _random(batch, channels, frames, height, width)]
    images = [_random(batch, channels, height, width), _random(batch, channels, 64, 64)]
    tiles = [_random(batch, 1, channels, height, width)]
    patch = _field(config, "patch_size", default=8)
    patches = [_random(batch, 16, channels * patch * patch)] if isinstance(patch, int) else []
    return clips + images if hasattr(config, "num_frames") else images + clips + tiles + patches


def _spectrograms(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    bins = _field(config, "num_mel_bins", "n_mels", "input_feat_per_channel", "feature_dim", "feature_size", default=16)
    frames = 2 * _field(config, "max_source_positions", "max_length", default=32)
    shapes = ((bins, frames), (frames, bins), (64, bins), (bins, 64))
    return [_random(batch, *shape) for shape in shapes]


def _waves(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    channels = _field(config, "audio_channels", default=1)
    bins = _field(config, "num_mel_bins", default=16)
    shapes = ((length * 160,), (channels, length * 160), (64, bins))
    return [_random(batch, *shape) for shape in shapes]


def _embeddings(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    size = _field(config, "encoder_hidden_size", "cross_attention_hidden_size", "hidden_size", "d_model", default=32)
    return [_random(batch, length, size)]


def _grid_patches(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    channels = _field(config, "in_channels", "num_channels", "in_chans", default=3)
    patch = _field(config, "patch_size", default=8)
    frames = _field(config, "temporal_patch_size", default=1)
    patches = [_random(16, channels * frames * patch * patch), _random(16, channels * patch * patch)]
    return patches + _embeddings(config, batch, length)


def _series(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    steps = _field(config, "context_length", default=32)
    channels = _field(config, "num_input_channels", default=1)
    lags = max(_field(config, "lags_sequence", default=[0]))
    return [_random(batch, steps, channels), _random(batch, steps + lags), _random(batch, steps)]


def _series_features(config: Any, batch: int, length: int) -> list[torch.Tensor]:
    return [_random(*_series(config, batch, length)[1].shape, _field(config, "num_time_features", default=1))]


_Maker = Callable[[Any, int, int], list[torch.Tensor]]
# What an argument of that name may be, the likeliest first.
_MAKERS: dict[str, _Maker] = {
    "input_ids": lambda config, batch, length: [_tokens(batch, length)],
    "decoder_input_ids": lambda config, batch, length: [_tokens(batch, length + 2)],
    "attention_mask": lambda config, batch, length: [_mask(batch, length)],
    "pixel_values": _images,
    "pixel_values_videos": _images,
    "input_features": _spectrograms,
    "input_values": _waves,
    "past_values": _series,
    "past_time_features": _series_features,
    "past_observed_mask": lambda config, batch, length: [torch.ones_like(_series(config, batch, length)[1])],
    "hidden_states": _grid_patches,
    "grid_thw": lambda config, batch, length: [torch.tensor([[1, 4, 4]])],
    "image_grid_thw": lambda config, batch, length: [torch.tensor([[1, 4, 4]])],
    "inputs_embeds": _embeddings,
    "encoder_hidden_states": _embeddings,
    "query_embeds": _embeddings,
    "bbox": lambda config, batch, length: [torch.arange(4).expand(batch, length, 4).contiguous()],
    "visual_feats": lambda config, batch, length: [_random(batch, 5, _field(config, "visual_feat_dim", default=32))],
    "visual_pos": lambda config, batch, length: [_random(batch, 5, 4)],
    "audio_values": _waves,
    "spectrogram": _spectrograms,
    "inputs": lambda config, batch, length: [_tokens(batch, length), _random(batch, length, 32)],
}
# Given wherever ``forward`` takes them, but for the calls that try to do with less.
_MAIN = (
    "input_ids", "attention_mask", "pixel_values", "input_features", "input_values", "decoder_input_ids", "bbox",
    "visual_feats", "visual_pos", "past_values", "past_time_features", "past_observed_mask",
)  # fmt: skip


def calls(module: torch.nn.Module, config: Any) -> Iterator[MakeCall]:
    """Ways of calling the module that it may take, the fullest first."""
    parameters = inspect.signature(module.forward).parameters
    required = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
    ]
    main = [name for name in _MAIN if name in parameters and (name != "decoder_input_ids" or config.is_encoder_decoder)]
    if "input_ids" not in main and "attention_mask" in main:
        main.remove("attention_mask")
    text = [name for name in main if name in ("input_ids", "attention_mask", "decoder_input_ids")]
    first = [getattr(module, "main_input_name", "input_ids")]
    seen = []
    for chosen in (main, [name for name in main if name != "attention_mask"], text, first, []):
        names = list(dict.fromkeys([*required, *(name for name in chosen if name in parameters)]))
        if names and names not in seen and all(name in _MAKERS for name in names):
            seen.append(names)
            for layouts in itertools.product(*(range(len(_MAKERS[name](config, 2, 12))) for name in names)):
                yield functools.partial(_call, config, dict(zip(names, layouts, strict=True)))


def _call(config: Any, layouts: dict[str, int], batch: int, length: int) -> Call:
    return {name: _MAKERS[name](config, batch, length)[layout] for name, layout in layouts.items()}


def first_call_that_runs(module: torch.nn.Module, config: Any) -> MakeCall:
    """The first way of calling that eager takes; raises what the first one raised if there is none."""
    problem: Exception | None = None
    for make_call in calls(module, config):
        try:
            with torch.no_grad():
                module(**make_call(2, 12))
        except Exception as error:  # noqa: BLE001 - whatever a model raises says that the call is not for it
            problem = problem or error
        else:
            return make_call
    raise problem or LookupError(f"no example for what {type(module).__name__}.forward takes")


def sizes_that_change(make_call: MakeCall) -> dict[str, dict[int, Dim | DerivedDim]]:
    """The dimensions of each argument that follow the batch or the length of text."""
    batch, length = Dim("batch", max=64), Dim("length", max=60)
    call, shorter, larger = make_call(2, 12), make_call(2, 9), make_call(3, 12)
    sizes: dict[str, dict[int, Dim | DerivedDim]] = {name: {} for name in call}
    for name, tensor in call.items():
        for dimension, size in enumerate(tensor.shape):
            if larger[name].shape[dimension] != size:
                sizes[name][dimension] = batch
            elif size - shorter[name].shape[dimension] == 3:
                sizes[name][dimension] = length if size == 12 else length + (size - 12)
            elif shorter[name].shape[dimension] != size:
                # Sounds so short that one frame is left of them are another program: torch.export refuses them, too.
                sizes[name][dimension] = Dim(f"{name}_{dimension}", min=size // 2, max=size * 5)
    return sizes
