"""Generation with transformers' caches: results, effects and tokens are eager's."""

import copy
import logging
from functools import partial

import pytest
import torch
import transformers

import precast
from precast.export import export, load, save
from precast.graph.interpreter import interpret
from precast.trace.capture import capture

pytestmark = pytest.mark.models
_TEXT = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 97}
_ENDS = {"bos_token_id": 1, "eos_token_id": 96, "pad_token_id": 0}
ids, more = torch.arange(2, 7)[None], torch.tensor([[7]])


def llama():
    config = transformers.LlamaConfig(**_TEXT, **_ENDS, num_key_value_heads=1)
    return transformers.LlamaForCausalLM(config).eval()


def mistral():
    config = transformers.MistralConfig(**_TEXT, **_ENDS, num_key_value_heads=1, sliding_window=64)
    return transformers.MistralForCausalLM(config).eval()


def gpt2():
    config = transformers.GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=97, **_ENDS)
    return transformers.GPT2LMHeadModel(config).eval()


def t5():
    config = transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, vocab_size=97, decoder_start_token_id=0, eos_token_id=96
    )
    return transformers.T5ForConditionalGeneration(config).eval()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def test_a_cache_is_a_result():
    model = llama()
    ours, eager = precast.compile(model, backend="interpret")(ids).past_key_values, model(ids).past_key_values
    assert type(ours) is type(eager)
    torch.testing.assert_close(ours.layers[0].keys, eager.layers[0].keys)
    assert ours.get_seq_length() == 5


@pytest.mark.thinned
@pytest.mark.parametrize("kind", [transformers.DynamicCache, transformers.StaticCache])
@pytest.mark.parametrize("make", [llama, mistral])
def test_a_cache_that_is_given_grows(kind, make):
    model = make()
    compiled = precast.compile(model, backend="interpret")
    options = {"max_cache_len": 8} if kind is transformers.StaticCache else {}
    ours, eager = kind(config=model.config, **options), kind(config=model.config, **options)
    for tokens in (ids, more, more):
        result, expected = compiled(tokens, past_key_values=ours), model(tokens, past_key_values=eager)
        assert result.past_key_values is ours
        torch.testing.assert_close(result.logits, expected.logits)
        torch.testing.assert_close(ours.layers[0].values, eager.layers[0].values)
        assert ours.get_seq_length() == eager.get_seq_length()


# T5 has a length more that changes: that of what its encoder reads.
@pytest.mark.parametrize(("make", "most"), [(gpt2, 6), (llama, 6), (mistral, 6), (t5, 7)])
def test_generated_tokens_are_eagers_after_few_compilations(make, most, caplog):
    model = make()
    compiled = precast.compile(model, backend="interpret")
    with caplog.at_level(logging.INFO, "precast.autograd"):
        for prompt in (ids, torch.arange(11, 20)[None]):
            options = {"max_new_tokens": 9, "do_sample": False}
            assert torch.equal(compiled.generate(prompt, **options), model.generate(prompt, **options))
    assert sum(record.message.startswith("compiled ") for record in caplog.records) <= most


@pytest.mark.thinned
@pytest.mark.parametrize("is_sampled", [False, True])
@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("what", ["the module", "its forward"])
def test_all_caches_and_ways_to_choose_tokens_generate(what, cache, is_sampled):
    model = llama()
    eager = copy.deepcopy(model)
    if what == "the module":
        compiled = called = precast.compile(model, backend="nop")
    else:
        compiled, called = precast.compile(model.forward, backend="nop"), model
        model.forward = compiled
    for tokens in (6, 6, 9):
        found, expected = (_generated(each, tokens, cache, is_sampled) for each in (called, eager))
        assert torch.equal(found, expected)
    assert len(precast.variants(compiled)) <= 4


def _generated(model, tokens, cache, is_sampled):
    torch.manual_seed(5)
    return model.generate(ids, max_new_tokens=tokens, do_sample=is_sampled, cache_implementation=cache)


def test_programs_take_and_give_caches(tmp_path):
    model = llama()
    cache = model(ids).past_key_values

    def call():
        return {"past_key_values": copy.deepcopy(cache)}

    expected = model(more, **call())
    exported = export(model, (more,), call())
    save(exported, tmp_path / "step.precast")
    program = capture(model, (more,), call())
    loaded = load(tmp_path / "step.precast")
    for run in (exported.module(), loaded.module(), partial(interpret, program)):
        result = run(more, **call())
        torch.testing.assert_close(result.logits, expected.logits)
        assert result.past_key_values.get_seq_length() == 6
