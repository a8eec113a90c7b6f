"""Objects among the arguments and results of packages: by their attributes, with and without their classes."""

import subprocess
import sys
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.artifact.trees import read_tree
from precast.errors import ArtifactError, InputValueError
from precast.runtime.trees import Record, unflatten


@dataclass(frozen=True)
class Layer:
    keys: torch.Tensor
    cumulative_length: int
    kind: str
    made_of: type


@dataclass(frozen=True)
class Cache:
    layers: list
    dtype: torch.dtype


class Model(torch.nn.Module):
    def forward(self, x, cache):
        layers = [
            Layer(torch.cat([layer.keys, x * 2]), layer.cumulative_length + x.shape[0], layer.kind, layer.made_of)
            for layer in cache.layers
        ]
        return {"sum": sum(layer.keys.sum() for layer in layers), "cache": Cache(layers, cache.dtype)}


def cache_of(*lengths):
    layers = [Layer(torch.randn(length, 3), length, "full", Layer) for length in lengths]
    return Cache(layers, torch.float32)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    torch.manual_seed(0)
    arguments = (torch.randn(1, 3), cache_of(2, 4))
    return precast.package(Model(), arguments, path=tmp_path_factory.mktemp("objects") / "cache.precast")


def test_objects_go_in_and_come_out(path):
    model, x, cache = precast.runtime.load(path), torch.randn(1, 3), cache_of(2, 4)
    result, expected = model(x, cache), Model()(x, cache)
    torch.testing.assert_close(result["sum"], expected["sum"])
    assert type(result["cache"]) is Cache
    assert result["cache"].dtype is torch.float32
    for layer, other in zip(result["cache"].layers, expected["cache"].layers, strict=True):
        assert (type(layer), layer.kind, layer.made_of) == (Layer, "full", Layer)
        assert layer.cumulative_length == other.cumulative_length
        torch.testing.assert_close(layer.keys, other.keys)
    assert model.verify()


def test_records_and_dicts_stand_for_objects(path):
    model, x, cache = precast.runtime.load(path), torch.randn(1, 3), cache_of(2, 4)
    layers = [{"keys": each.keys, "cumulative_length": each.cumulative_length, "kind": "full"} for each in cache.layers]
    as_record = Record("any:Cache", ("layers", "dtype"), (layers, torch.float32))
    torch.testing.assert_close(model(x, as_record)["sum"], model(x, cache)["sum"])
    as_mapping = MappingProxyType({"layers": layers, "dtype": torch.float32})
    torch.testing.assert_close(model(x, as_mapping)["sum"], model(x, cache)["sum"])


def test_another_object_is_refused(path):
    with pytest.raises(InputValueError, match="structure"):
        precast.runtime.load(path)(torch.randn(1, 3), cache_of(2, 4).layers[0])
    others = [Layer(torch.randn(length, 3), length, "sliding", Layer) for length in (2, 4)]
    with pytest.raises(InputValueError, match="captured with 'full'"):
        precast.runtime.load(path)(torch.randn(1, 3), Cache(others, torch.float32))


def test_without_their_classes_objects_are_records(path):
    code = """
import sys; sys.modules["torch"] = None
import numpy as np, precast.runtime
model = precast.runtime.load(sys.argv[1])
layers = [{"keys": np.ones((n, 3), np.float32), "cumulative_length": n, "kind": "full"} for n in (2, 4)]
result = model(np.ones((1, 3), np.float32), {"layers": layers, "dtype": "float32"})
layer = result["cache"]["layers"][1]
assert type(layer).__name__ == "Record", layer
assert layer["cumulative_length"] == 5, layer
assert layer["keys"].tolist() == [[1.0] * 3] * 4 + [[2.0] * 3], layer
"""
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)


def test_a_file_cannot_set_what_is_no_attribute():
    for field in ("__class__", "a.b", 3):
        with pytest.raises(ArtifactError, match="tree"):
            read_tree(["object", ["module:Name", None, [{"str": field} if isinstance(field, str) else field]], ["*"]])


def test_only_records_and_caches_are_made_without_their_constructor():
    tree = read_tree(["object", ["subprocess:Popen", None, [{"str": "args"}]], ["*"]])
    assert isinstance(unflatten(tree, iter([np.ones(1)])), Record)


def small_language_model(name):
    import transformers as t

    sizes = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 16}
    rope = {"num_key_value_heads": 1, "intermediate_size": 24, "max_position_embeddings": 32}
    configs = {
        "gpt2": lambda: t.GPT2LMHeadModel(t.GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=32)),
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**sizes, **rope)),
        "mistral": lambda: t.MistralForCausalLM(t.MistralConfig(**sizes, **rope, sliding_window=4)),
    }
    torch.manual_seed(0)
    return configs[name]().eval()


@pytest.mark.models
@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral"])
def test_a_language_model_goes_on_from_its_packaged_cache(name, tmp_path):
    model = small_language_model(name)
    ids, token = torch.randint(0, 50, (1, 5)), torch.randint(0, 50, (1, 1))
    with torch.no_grad():
        first = model(ids)
        entries = {"prefill": (model, (ids,)), "decode": (model, (token,), {"past_key_values": first.past_key_values})}
        loaded = precast.runtime.load(precast.package(entries, path=tmp_path / "model.precast"))
        result = loaded["prefill"](ids)
        torch.testing.assert_close(result.logits, first.logits, rtol=1e-4, atol=1e-4)
        again = loaded["decode"](token, past_key_values=result.past_key_values)
        second = model(token, past_key_values=first.past_key_values)
    torch.testing.assert_close(again.logits, second.logits, rtol=1e-4, atol=1e-4)
    for layer, expected in zip(again.past_key_values.layers, second.past_key_values.layers, strict=True):
        torch.testing.assert_close(layer.keys, expected.keys, rtol=1e-4, atol=1e-4)
    assert again.past_key_values.get_seq_length() == 6


@pytest.mark.models
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_language_model_with_its_cache_becomes_onnx(name):
    model, ids = small_language_model(name), torch.randint(0, 50, (1, 5))
    program = precast.onnx.export(model, (ids,))
    assert [each.name for each in program.model.graph.outputs][:2] == ["logits", "past_key_values_layers_0_keys"]
    with torch.no_grad():
        expected = model(ids)
    result = program.call_as_model(ids)
    torch.testing.assert_close(result.logits, expected.logits, rtol=1e-4, atol=1e-4)
    keys = [each.past_key_values.layers[1].keys for each in (result, expected)]
    torch.testing.assert_close(*keys, rtol=1e-4, atol=1e-4)
