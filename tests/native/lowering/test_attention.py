"""Scaled-dot-product attention and its gradients, against eager and float64."""

import pytest
import torch

from precast.native.loops.interpreter import interpret
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.cases import check_case, floats, open_cases
from tests.native.lowering.pipeline import lowered

aten = torch.ops.aten


def heads(length, *, seed, depth=8, dtype=torch.float32):
    """As models make them: heads are the third dimension in memory."""
    return floats(2, length, 3, depth, seed=seed, dtype=dtype).transpose(1, 2)


def attend(query, key, value, mask=None, *, is_causal=False, scale=None):
    return aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale
    )


def gradients(dy, query, key, value, mask=None, *, is_causal=False):
    output, sums = attend(query, key, value, mask, is_causal=is_causal)
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dy, query, key, value, output, sums, 0.0, is_causal, attn_mask=mask
    )


QUERY, KEY, VALUE, SLOPE = heads(5, seed=0), heads(7, seed=1), heads(7, seed=2), heads(5, seed=3)
MASK = floats(2, 1, 5, 7, seed=4).masked_fill(floats(2, 1, 5, 7, seed=5) > 1, float("-inf"))
# More than a block of queries and more than a block of keys, none of them full; rows end within a vector.
LONG = [heads(100, seed=0, depth=20), heads(600, seed=1, depth=20), heads(600, seed=2, depth=20)]
LONG_SLOPE, LONG_MASK = heads(100, seed=3, depth=20), floats(100, 600, seed=4)
WIDE = [heads(100, seed=0, depth=96), heads(600, seed=1, depth=96), heads(600, seed=2, depth=96)]
BLIND = torch.zeros(2, 1, 5, 7).index_fill(2, torch.tensor([1]), float("-inf"))
CASES = {
    "attention": (attend, [QUERY, KEY, VALUE]),
    "attention_causal": (lambda q, k, v: attend(q, k, v, is_causal=True), [KEY, KEY, VALUE]),
    "attention_masked": (attend, [QUERY, KEY, VALUE, MASK]),
    "attention_scaled": (lambda q, k, v: attend(q, k, v, scale=0.7), [QUERY, KEY, VALUE]),
    "attention_f64": (attend, [QUERY.double(), KEY.double(), VALUE.double()]),
    "attention_bf16": (attend, [QUERY.bfloat16(), KEY.bfloat16(), VALUE.bfloat16()]),
    "attention_large_scores": (attend, [QUERY * 100, KEY, VALUE]),
    "attention_long": (attend, LONG),
    "attention_long_causal": (lambda q, k, v: attend(q, k, v, is_causal=True), LONG),
    "attention_long_masked": (attend, [*LONG, LONG_MASK]),
    "attention_of_many_queries": (lambda q, k, v: attend(q, k, v, is_causal=True), [LONG[1], LONG[0], LONG_SLOPE]),
    "attention_of_few_queries": (attend, [WIDE[0][:, :, :5], *WIDE[1:], LONG_MASK[:5]]),
    "attention_wide": (attend, WIDE),
    "attention_wide_bf16": (attend, [WIDE[0][:, :, :5].bfloat16(), *(each.bfloat16() for each in WIDE[1:])]),
    "attention_without_keys": (attend, [QUERY, KEY, VALUE, BLIND]),
    "attention_without_keys_f64": (attend, [each.double() for each in (QUERY, KEY, VALUE, BLIND)]),
    "attention_f16": (attend, [QUERY.half(), KEY.half(), VALUE.half()]),
    "gradients_long": (gradients, [LONG_SLOPE, *LONG]),
    "gradients_long_causal": (lambda *given: gradients(*given, is_causal=True), [LONG_SLOPE, *LONG]),
    "gradients_long_masked": (gradients, [LONG_SLOPE, *LONG, LONG_MASK]),
    "gradients_without_keys": (gradients, [SLOPE, QUERY, KEY, VALUE, BLIND]),
    "gradients_f64": (gradients, [each.double() for each in (SLOPE, QUERY, KEY, VALUE)]),
    "gradients": (gradients, [SLOPE, QUERY, KEY, VALUE]),
    "gradients_causal": (
        lambda dy, q, k, v: gradients(dy, q, k, v, is_causal=True), [heads(7, seed=3), KEY, KEY, VALUE]),
    "gradients_masked": (gradients, [SLOPE, QUERY, KEY, VALUE, MASK]),
    "product_of_batches": (lambda a, b: torch.baddbmm(a[:, :1], a, b, beta=0.5), [floats(3, 4, 5), floats(3, 5, 5)]),
}  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return open_cases(CASES, tmp_path_factory.mktemp("cache"))


@pytest.mark.parametrize("name", CASES)
def test_attention_gives_what_eager_gives(model, name):
    check_case(model, name, CASES[name], sums=True)


INTERPRETED = ["attention_masked", "attention_scaled", "attention_causal", "gradients_masked", "gradients_without_keys"]


@pytest.mark.parametrize("name", INTERPRETED)
def test_the_interpreter_agrees(name):
    function, inputs = CASES[name]
    for mine, eager in zip(interpret(fuse(lowered(function, *inputs)), inputs), function(*inputs), strict=True):
        torch.testing.assert_close(mine, eager)


def test_scores_are_not_kept_in_memory():
    program = fuse(lowered(attend, *LONG))
    assert [step.routine for step in program.steps] == ["attention"]
    assert not program.temporaries
