"""Language models as files: the same tokens as transformers' ``generate()``, without torch."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
import transformers

import precast
from precast.artifact.package import open_package
from precast.errors import InputTypeError, InputValueError
from precast.generation.decoder import EndTokens
from precast.runtime import Sampling, generate, load

ENDS = {"bos_token_id": 1, "pad_token_id": 0, "vocab_size": 300}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
ROOM = 48
MODELS = {
    "gpt2": lambda end: transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_embd=64, n_layer=2, n_head=4, eos_token_id=end, **ENDS)
    ),
    "qwen3": lambda end: transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SIZES, num_key_value_heads=2, head_dim=16, eos_token_id=end, **ENDS)
    ),
    "llama": lambda end: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**SIZES, num_key_value_heads=2, eos_token_id=end, **ENDS)
    ),
    "mistral": lambda end: transformers.MistralForCausalLM(
        transformers.MistralConfig(**SIZES, num_key_value_heads=2, sliding_window=8, eos_token_id=end, **ENDS)
    ),
    "gemma3": lambda end: transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            **SIZES, num_key_value_heads=2, head_dim=16, sliding_window=8, eos_token_id=end, **ENDS
        )
    ),
    "phi3": lambda end: transformers.Phi3ForCausalLM(
        transformers.Phi3Config(**SIZES, num_key_value_heads=2, eos_token_id=end, **ENDS)
    ),
}


def language_model(kind: str, end: int | None = None) -> torch.nn.Module:
    torch.manual_seed(0)
    model = MODELS[kind](end).eval()
    # Random weights as they are made are small: all tokens would be nearly as likely.
    for parameter in model.parameters():
        parameter.data.mul_(3 if parameter.ndim > 1 else 1)
    return model


def greedy(model: torch.nn.Module, prompt: list[int], count: int) -> list[int]:
    with torch.no_grad():
        return model.generate(torch.tensor([prompt]), max_new_tokens=count, do_sample=False)[0, len(prompt) :].tolist()


def generated(loaded, prompts: list[list[int]], count: int, **options) -> list[list[int]]:
    rows: list[list[int]] = [[] for _ in prompts]
    for step in generate(loaded, prompts, max_new_tokens=count, **options):
        for row, token in zip(rows, step, strict=True):
            if token is not None:
                row.append(token)
    return rows


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    model = language_model("gpt2")
    path = tmp_path_factory.mktemp("gpt2") / "gpt2.precast"
    return model, precast.generation.package(model, path, max_length=ROOM, batch_size=2)


@pytest.mark.parametrize(
    "kind", ["qwen3", *(pytest.param(kind, marks=pytest.mark.slow) for kind in MODELS if kind not in ("qwen3", "gpt2"))]
)
def test_greedy_tokens_are_those_of_transformers(kind, tmp_path):
    """Past the end of a sliding window, where there is one; a second text begins anew."""
    model = language_model(kind)
    loaded = load(precast.generation.package(model, tmp_path / "model.precast", max_length=ROOM))
    for prompt in ([5, 6, 7, 8, 9], [200]):
        assert generated(loaded, [prompt], 30) == [greedy(model, prompt, 30)]


def test_rows_of_a_batch_do_not_see_their_padding(gpt2):
    model, path = gpt2
    prompts = [[9, 8, 7, 6, 5, 4], [250]]
    assert generated(load(path), prompts, 25) == [greedy(model, prompt, 25) for prompt in prompts]


def test_fewer_prompts_than_rows_and_no_more_tokens_than_there_is_room_for(gpt2):
    model, path = gpt2
    ((*tokens,),) = generated(load(path), [[5, 6, 7]], 1000)
    assert tokens == greedy(model, [5, 6, 7], ROOM - 3 + 1)


def test_a_text_ends_with_an_end_token(gpt2):
    model, path = gpt2
    tokens = greedy(model, [5, 6, 7], 20)
    end = next(token for token in tokens[3:] if tokens.index(token) >= 3)
    assert generated(load(path), [[5, 6, 7]], 20, ends=[end]) == [tokens[: tokens.index(end) + 1]]


def test_a_file_knows_the_models_end_tokens():
    assert EndTokens(language_model("gpt2", 7))().tolist() == [7]
    assert EndTokens(language_model("gpt2", [7, 9]))().tolist() == [7, 9]
    assert EndTokens(language_model("gpt2"))().tolist() == []


def test_the_cache_is_written_where_it_is(gpt2):
    """A token's keys and values are no outputs that would be copied or exchanged as a whole."""
    _, path = gpt2
    entries = {entry.name: entry.interface for entry in open_package(path).manifest.entries}
    for name in ("prefill", "decode"):
        assert [each.shape[-1] for each in entries[name].outputs] == [ENDS["vocab_size"]]
        updated = {each.name for each in entries[name].updates}
        assert {"position", "keys_0", "keys_1", "values_0", "values_1"} <= updated


@pytest.mark.slow
def test_quantized_models_generate_what_they_do_in_eager(tmp_path):
    small = precast.quantize(language_model("qwen3"), "int8")
    loaded = load(precast.generation.package(small, tmp_path / "small.precast", max_length=ROOM))
    assert generated(loaded, [[5, 6, 7]], 20) == [greedy(small, [5, 6, 7], 20)]


def test_the_command_runs_without_torch_and_repeats_what_a_seed_drew(gpt2):
    _, path = gpt2
    code = "import sys; sys.modules['torch'] = None; from precast.cli import main; main()"
    options = ["--temperature", "1.5", "--top-k", "20", "--top-p", "0.9", "--seed", "3", "-n", "6", "--json"]
    command = [sys.executable, "-c", code, "generate", str(path), "--prompt", "ship", "--prompt", "at", *options]
    first, second = (subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(2))
    told = json.loads(first)
    assert told["tokens"] == json.loads(second)["tokens"]
    assert [len(row) for row in told["tokens"]] == [6, 6]
    assert told["prompt_tokens"] == [4, 2]


def test_what_cannot_be_generated_is_told(gpt2, tmp_path):
    _, path = gpt2
    loaded = load(path)
    with pytest.raises(InputValueError, match="3 prompts"):
        list(generate(loaded, [[1]] * 3, max_new_tokens=1))
    with pytest.raises(InputValueError, match="room for 48"):
        list(generate(loaded, [[1] * 48], max_new_tokens=1))
    other = precast.package(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path / "relu.precast")
    with pytest.raises(InputValueError, match="does not generate"):
        list(generate(load(other), [[1]], max_new_tokens=1))
    with pytest.raises(InputTypeError, match="not a language model"):
        precast.generation.package(torch.nn.Linear(2, 2), tmp_path / "no.precast")
    with pytest.raises(InputValueError, match="max_length is 5000"):
        precast.generation.package(language_model("gpt2"), tmp_path / "no.precast", max_length=5000)


def test_drawn_tokens_follow_their_probabilities():
    from precast.runtime.sampling import choose

    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))

    def shares(**options) -> list[float]:
        sampling = Sampling(temperature=1.0, seed=0, **options)
        generator = sampling.generator()
        drawn = [int(choose(logits, sampling, generator)[0]) for _ in range(4000)]
        return [drawn.count(token) / 4000 for token in range(4)]

    np.testing.assert_allclose(shares(), [0.5, 0.3, 0.15, 0.05], atol=0.03)
    np.testing.assert_allclose(shares(top_k=2), [0.625, 0.375, 0, 0], atol=0.03)
    np.testing.assert_allclose(shares(top_p=0.75), [0.625, 0.375, 0, 0], atol=0.03)
    assert shares(top_p=0.4) == [1, 0, 0, 0]


def test_models_that_take_the_caches_end_for_the_last_token_are_refused(tmp_path):
    attention = [[["global", "local"], 1]]
    config = transformers.GPTNeoConfig(
        hidden_size=32, num_layers=2, num_heads=4, attention_types=attention, window_size=8, **ENDS
    )
    torch.manual_seed(0)
    with pytest.raises(
        InputValueError, match="GPTNeoForCausalLM computes other logits with a key-value cache of fixed"
    ):
        precast.generation.package(transformers.GPTNeoForCausalLM(config), tmp_path / "m.precast", max_length=ROOM)
