"""Whole architectures in onnxruntime, at the example's sizes and at others."""

import copy
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
import torch
import transformers
from torch import nn
from torch.utils import _pytree as pytree

from benchmarks.onnx_export import EXPORTERS, bert
from precast.onnx import ONNXProgram, export
from precast.trace.capture import Dim
from tests.models.zoo import ZOO

QUICK = ("bert", "resnet")
NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.models) for name in ZOO]


def assert_like_eager(program: ONNXProgram, model: nn.Module, *args: Any, **kwargs: Any) -> None:
    with torch.no_grad():
        expected = pytree.tree_leaves(model(*args, **kwargs))
    torch.testing.assert_close(list(program(*args, **kwargs)), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_architecture(name: str):
    torch.manual_seed(0)
    example = ZOO[name]()
    program = export(example.module, example.args, kwargs=example.kwargs, dynamic_shapes=example.dynamic_shapes)
    for kwargs in (example.kwargs, example.other_kwargs):
        assert_like_eager(program, example.module, *example.args, **kwargs)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], **options: Any):
        super().__init__()
        self.layers = kind(6, 8, batch_first=True, **options)
        self.head = nn.Linear(8 * (2 if options.get("bidirectional") else 1), 3)

    def forward(self, x):
        states, last = self.layers(x)
        return self.head(states), last


@pytest.mark.models
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["plain", "deep"])
def test_recurrent_layers_take_any_time(kind: type[nn.RNNBase], options: dict[str, Any]):
    torch.manual_seed(0)
    model = Recurrent(kind, **options).eval()
    sizes = {0: Dim("batch", min=1), 1: Dim("time", min=1)}
    program = export(model, (torch.randn(2, 5, 6),), dynamic_shapes=(sizes,))
    for batch, time in ((2, 5), (3, 11), (1, 2)):
        assert_like_eager(program, model, torch.randn(batch, time, 6))


class GPT2WithCache(nn.Module):
    """One step of generation: keys and values of the past come in and go out as plain tensors."""

    def __init__(self):
        super().__init__()
        config = transformers.GPT2Config(
            vocab_size=97, n_embd=32, n_layer=2, n_head=4, n_positions=64, bos_token_id=1, eos_token_id=2
        )
        self.model = transformers.GPT2LMHeadModel(config)

    def forward(self, input_ids, attention_mask, past):
        cache = transformers.DynamicCache()
        for layer, (keys, values) in enumerate(past):
            cache.update(keys, values, layer)
        result = self.model(input_ids=input_ids, attention_mask=attention_mask, past_key_values=cache, use_cache=True)
        return result.logits, [(layer.keys, layer.values) for layer in result.past_key_values.layers]


def generation_step(batch: int, new: int, past: int) -> tuple[Any, ...]:
    ids = torch.randint(3, 97, (batch, new))
    mask = torch.ones(batch, past + new, dtype=torch.int64)
    return ids, mask, [(torch.randn(batch, 4, past, 8), torch.randn(batch, 4, past, 8)) for _ in range(2)]


@pytest.mark.models
def test_gpt2_with_a_cache_of_any_length():
    torch.manual_seed(0)
    model = GPT2WithCache().eval()
    batch, past = Dim("batch", min=1, max=8), Dim("past", min=1, max=40)
    cache = ({0: batch, 2: past}, {0: batch, 2: past})
    shapes = {"input_ids": {0: batch}, "attention_mask": {0: batch, 1: past + 1}, "past": [cache, cache]}
    program = export(model, generation_step(2, 1, 5), dynamic_shapes=shapes)
    assert [value.name for value in program.model.graph.inputs][2:4] == ["past_0_0", "past_0_1"]
    for size, length in ((2, 5), (3, 9)):
        assert_like_eager(program, model, *generation_step(size, 1, length))


def call_with_cache(batch: int, new: int, past: int) -> dict[str, Any]:
    layers = [(torch.randn(batch, 2, past, 4), torch.randn(batch, 2, past, 4)) for _ in range(2)]
    return {
        "input_ids": torch.randint(0, 50, (batch, new)),
        "attention_mask": torch.ones(batch, past + new, dtype=torch.int64),
        "past_key_values": transformers.DynamicCache(layers),
    }


@pytest.mark.models
@pytest.mark.parametrize("by_axes", [True, False])
def test_a_cache_goes_in_and_out_as_an_object(by_axes: bool):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "max_position_embeddings": 64}
    config = transformers.LlamaConfig(vocab_size=50, num_attention_heads=4, num_key_value_heads=2, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    past, names = {0: "batch", 2: "past"}, ["k0", "v0", "k1", "v1"]
    described: dict[str, Any] = {"input_ids": {0: "batch", 1: "new"}, "attention_mask": {0: "batch", 1: "all"}}
    if by_axes:
        options = {"dynamic_axes": described | dict.fromkeys(names, past), "input_names": [*described, *names]}
    else:
        options = {"dynamic_shapes": described | {"past_key_values": [past] * 4}}
    program = export(model, (), kwargs=call_with_cache(2, 3, 5), **options)
    assert "past=" in str(program.verification)
    for call in (call_with_cache(1, 1, 9), call_with_cache(3, 4, 2)):
        with torch.no_grad():
            expected = model(**copy.deepcopy(call))
        actual = program.call_as_model(**copy.deepcopy(call))
        torch.testing.assert_close(actual.logits, expected.logits, rtol=1e-3, atol=1e-4)
        for layer, other in zip(actual.past_key_values.layers, expected.past_key_values.layers, strict=True):
            torch.testing.assert_close((layer.keys, layer.values), (other.keys, other.values), rtol=1e-3, atol=1e-4)


@pytest.mark.models
def test_bert_is_no_larger_and_has_no_more_nodes_than_torchs(tmp_path: Path):
    """In the file, and in what onnxruntime makes of it: how long it runs depends on the machine, this does not."""
    model, inputs = bert(layers=2)
    nodes, sizes = {}, {}
    for name, run in EXPORTERS.items():
        path, optimized = tmp_path / f"{name}.onnx", tmp_path / f"optimized_{name}.onnx"
        run(model, inputs, path, 20)
        options = onnxruntime.SessionOptions()
        options.optimized_model_filepath = str(optimized)
        onnxruntime.InferenceSession(path, options)
        nodes[name] = [len(onnx.load(each, load_external_data=False).graph.node) for each in (path, optimized)]
        sizes[name] = sum(each.stat().st_size for each in tmp_path.glob(f"{name}.onnx*"))
    assert all(ours <= theirs for ours, theirs in zip(nodes["precast"], nodes["torch"], strict=True))
    assert sizes["precast"] <= sizes["torch"]


@pytest.mark.models
def test_whisper_encoder():
    torch.manual_seed(0)
    encoder = ZOO["whisper"]().module.get_encoder().eval()
    features = torch.randn(2, 16, 128)
    program = export(encoder, (features,), dynamic_shapes={"input_features": {0: Dim("batch", max=8)}})
    assert_like_eager(program, encoder, torch.randn(5, 16, 128))


@pytest.mark.models
def test_symbolic_tracing_of_a_vision_model_without_weights(tmp_path):
    class Block(nn.Module):
        def __init__(self, device: str | None = None):
            super().__init__()
            self.convolution = nn.Conv2d(3, 8, 3, padding=1, device=device)
            self.norm = nn.BatchNorm2d(8, device=device)
            self.head = nn.Linear(8, 4, device=device)

        def forward(self, x):
            return self.head(torch.relu(self.norm(self.convolution(x))).mean((2, 3)))

    from safetensors.torch import save_file

    sizes = {0: Dim("batch", max=8)}
    program = export(Block("meta").eval(), (torch.randn(2, 3, 8, 8),), capture="symbolic", dynamic_shapes=(sizes,))
    model = Block().eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    program.attach_weights(tmp_path / "weights.safetensors")
    assert_like_eager(program, model, torch.randn(5, 3, 8, 8))
