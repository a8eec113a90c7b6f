"""Whoever asks for native code of a model gets the same kernels: compile, torch.compile, explain, package."""

from contextlib import suppress
from importlib import import_module

import pytest
import torch
from torch import nn

import precast
from precast.native import programs as native_programs
from precast.native.loops.buffers import View
from precast.native.loops.canonical import canonical_key
from precast.native.loops.program import Kernel, KernelGroup, LibraryCall
from precast.native.targets.cpu.target import CpuTarget

package_module = import_module("precast.packaging.package")


class LoweredEnoughError(Exception):
    """Raised where C++ would be compiled: what is compared is known by then."""


def lowered_enough(*_, **__):
    raise LoweredEnoughError


@pytest.fixture
def steps_of(monkeypatch, tmp_path):
    """The steps that a function has the native backend make, as texts without names."""
    fused = []
    run = native_programs.run_loop_passes
    monkeypatch.setattr(
        native_programs, "run_loop_passes", lambda *args, **kw: fused.append(run(*args, **kw)) or fused[-1]
    )
    monkeypatch.setattr(CpuTarget, "start", lambda *_, **__: lowered_enough)
    monkeypatch.setattr(package_module, "build_code", lowered_enough)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path))
    # Torch's front end would see another program: in eval mode, attention layers call an operator of their own.
    torch.backends.mha.set_fastpath_enabled(False)
    torch._dynamo.reset()

    def steps(function, *args, **kwargs):
        fused.clear()
        with suppress(LoweredEnoughError):
            function(*args, **kwargs)
        assert fused
        return sorted(step_text(step) for program in fused for step in program.steps)

    yield steps
    torch._dynamo.reset()
    torch.backends.mha.set_fastpath_enabled(True)


def step_text(step):
    if isinstance(step, Kernel):
        return canonical_key(step)
    if isinstance(step, KernelGroup):
        return "\n".join(map(canonical_key, step.members))
    if isinstance(step, LibraryCall):
        views = [view_text(view) for view in (*step.inputs, *step.outputs)]
        return f"{step.routine} {views} {step.numbers} {step.prologue} {step.epilogue}"
    return f"{type(step).__name__} {getattr(step, 'operator', '')}"


def view_text(view: View) -> str:
    return f"{view.dtype} {list(map(str, view.shape))} {list(map(str, view.strides))} from {view.offset}"


class SelfAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


class WithDecoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerDecoderLayer(16, 2, 24, batch_first=True)

    def forward(self, x):
        return self.layer(x, x.flip(1))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(6, 8)

    def forward(self, x):
        return self.layer(x)[0].relu()


MODELS = {
    "attention": (SelfAttention, (2, 5, 16)),
    "encoder": (lambda: nn.TransformerEncoderLayer(16, 2, 24, batch_first=True, activation="gelu"), (3, 5, 16)),
    "decoder": (WithDecoder, (3, 5, 16)),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=8),
            nn.BatchNorm2d(8), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
        ),
        (2, 3, 10, 10),
    ),
    "recurrent": (Recurrent, (4, 2, 6)),
    "transposed": (lambda: nn.Sequential(nn.Conv1d(4, 6, 3), nn.GELU(), nn.Unflatten(0, (1, -1))), (2, 4, 9)),
}  # fmt: skip


NOT_SEEN_BY_TORCH = ("recurrent",)
"""Torch's front end leaves such layers to eager."""


def model_and_input(name):
    torch.manual_seed(0)
    make, shape = MODELS[name]
    return make().eval(), torch.randn(shape)


def most_are_slow(*fast):
    return [name if name in fast else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


@pytest.mark.parametrize("needs_grad", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize("name", most_are_slow("encoder", "convolutions"))
def test_inference_is_the_same_wherever_it_is_asked_for(name, needs_grad, steps_of, tmp_path):
    model, x = model_and_input(name)
    model.requires_grad_(needs_grad)
    with torch.no_grad():
        compiled = steps_of(precast.compile(model), x)
        if name not in NOT_SEEN_BY_TORCH:
            assert steps_of(torch.compile(model, backend="precast"), x) == compiled
        assert steps_of(precast.explain, model, x) == compiled
        options = {"freeze": False}
        assert steps_of(precast.package, model, (x,), path=tmp_path / "p", options=options) == compiled


@pytest.mark.parametrize("name", most_are_slow("convolutions"))
def test_training_is_the_same_wherever_it_is_asked_for(name, steps_of):
    model, x = model_and_input(name)
    if name in NOT_SEEN_BY_TORCH:
        pytest.skip("torch's front end leaves it to eager")
    model.train()
    for module in model.modules():
        if isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    compiled = steps_of(precast.compile(model), x)
    assert steps_of(torch.compile(model, backend="precast"), x) == compiled
    assert steps_of(precast.explain, model, x) == compiled


@pytest.mark.parametrize("name", ["convolutions", "encoder"])
def test_frozen_inference_is_the_same_wherever_it_is_asked_for(name, steps_of, tmp_path):
    model, x = model_and_input(name)
    frozen = {"freeze": True}
    with torch.no_grad():
        compiled = steps_of(precast.compile(model, options=frozen), x)
        assert compiled != steps_of(precast.compile(model), x) or name == "encoder"
        assert steps_of(torch.compile(model, backend="precast", options=frozen), x) == compiled
        assert steps_of(precast.explain, precast.compile(model, options=frozen), x) == compiled
        assert steps_of(precast.package, model, (x,), path=tmp_path / "p") == compiled


def language_model(name):
    import transformers

    sizes = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    bert = {"intermediate_size": 24, "max_position_embeddings": 32}
    models = {
        "gpt2": lambda: transformers.GPT2LMHeadModel(
            transformers.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32)
        ),
        "llama": lambda: transformers.LlamaForCausalLM(
            transformers.LlamaConfig(**sizes, **bert, num_key_value_heads=1)
        ),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**sizes, **bert)),
    }
    torch.manual_seed(0)
    return models[name]().eval()


@pytest.mark.models
@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_language_models_are_the_same_wherever_they_are_asked_for(name, freeze, steps_of, tmp_path):
    model, ids, options = language_model(name), torch.arange(6).reshape(1, 6), {"freeze": freeze}
    with torch.no_grad():
        compiled = steps_of(precast.compile(model, options=options), ids)
        assert steps_of(precast.explain, precast.compile(model, options=options), ids) == compiled
        assert steps_of(precast.package, model, (ids,), path=tmp_path / "p", options=options) == compiled
