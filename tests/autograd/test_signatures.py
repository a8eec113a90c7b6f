"""One variant for each kind of call: which calls share one, which do not, and what changes from call to call."""

import warnings

import pytest
import torch

from precast.autograd import aot_function
from precast.compilers import nop
from tests.autograd.like_eager import CompilationCount


def scaled(x, factor=2):
    return x * factor


def counted(function, **options):
    count = CompilationCount()
    return aot_function(function, count, **options), count


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((torch.ones(3),), (torch.ones(4),)),
        ((torch.ones(3),), (torch.ones(3, dtype=torch.float64),)),
        ((torch.ones(3),), (torch.ones(3, 1),)),
        ((torch.ones(2, 3),), (torch.ones(3, 2).t(),)),
        ((torch.ones(3), 2), (torch.ones(3), 3)),
        ((torch.ones(3), 2), (torch.ones(3), 2.0)),
        ((torch.ones(3), 1), (torch.ones(3), True)),
        ((torch.ones(3), 0.0), (torch.ones(3), -0.0)),
        ((torch.ones(3), 2), (torch.ones(3), torch.tensor(2))),
    ],
    ids=["shape", "dtype", "rank", "strides", "value", "type", "bool", "sign of zero", "tensor for number"],
)
def test_each_signature_has_its_own_variant_and_old_ones_still_hit(first, second):
    compiled, count = counted(scaled)
    for args in (first, second, first, second):
        ours, eager = compiled(*args), scaled(*args)
        assert torch.equal(ours, eager)
        assert ours.dtype == eager.dtype
        assert torch.equal(torch.signbit(ours), torch.signbit(eager))
    assert len(count) == 2


def test_nan_is_one_value():
    compiled, count = counted(scaled)
    compiled(torch.ones(3), float("nan"))
    compiled(torch.ones(3), float("nan"))
    assert len(count) == 1


def test_slices_are_values():
    compiled, count = counted(lambda x, where: x[where] * 2)
    for where in (slice(0, 2), slice(1, 3), slice(0, 2)):
        assert torch.equal(compiled(torch.arange(4), where), torch.arange(4)[where] * 2)
    assert len(count) == 2


def test_structure_of_the_arguments():
    compiled, count = counted(lambda inputs: inputs["a"] - inputs["b"] if isinstance(inputs, dict) else inputs[0])
    x, y = torch.ones(3), torch.zeros(3)
    assert torch.equal(compiled({"a": x, "b": y}), x)
    assert torch.equal(compiled([y, x]), y)
    assert torch.equal(compiled({"a": y, "b": x}), -x)
    assert len(count) == 2


def test_structure_of_the_outputs():
    def function(x, as_dict):
        return {"double": x * 2, "n": 3} if as_dict else [x, (x * 3, None)]

    compiled, _ = counted(function)
    x = torch.ones(3)
    ours = compiled(x, True)
    assert torch.equal(ours["double"], x * 2)
    assert ours["n"] == 3
    ours = compiled(x, False)
    assert ours[0] is x
    assert ours[1][1] is None


def test_positional_and_keyword_arguments():
    compiled, _ = counted(lambda x, *, y: x - y)
    assert torch.equal(compiled(torch.ones(3), y=torch.zeros(3)), torch.ones(3))


def test_requires_grad_and_grad_mode():
    compiled, count = counted(torch.sin)
    x = torch.ones(3)
    assert not compiled(x).requires_grad
    x.requires_grad_()
    assert compiled(x).requires_grad
    with torch.no_grad():
        assert not compiled(x).requires_grad
    with torch.inference_mode():
        assert compiled(x).is_inference()
    assert compiled(x).requires_grad
    # Forward and backward of the differentiable variant, and one graph of each other one.
    assert len(count) == 5


def test_autocast_is_part_of_the_signature_and_of_the_graph():
    compiled, count = counted(torch.mm)
    x, y = (torch.randn(4, 4, requires_grad=True) for _ in range(2))
    assert compiled(x, y).dtype is torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        ours, eager = compiled(x, y), torch.mm(x, y)
    with torch.autocast("cpu", torch.float16):
        assert compiled(x, y).dtype is torch.float16
    assert ours.dtype is torch.bfloat16
    assert torch.equal(ours, eager)
    assert torch.equal(*(torch.autograd.grad(result.float().sum(), x)[0] for result in (ours, eager)))
    assert len(count) == 6


def test_default_dtype_is_part_of_the_signature():
    compiled, _ = counted(lambda x: x + torch.ones(3))
    x = torch.ones(3, dtype=torch.int64)
    assert compiled(x).dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert compiled(x).dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_dynamic_sizes_share_one_variant():
    compiled, count = counted(lambda x: (x * x.shape[0]).sum(), dynamic=True)
    for size in (3, 5, 117, 2):
        x = torch.randn(size, 4, requires_grad=True)
        ours, eager = compiled(x), (x * size).sum()
        assert torch.equal(ours, eager)
        assert torch.equal(*(torch.autograd.grad(loss, x)[0] for loss in (ours, eager)))
    assert len(count) == 2


def test_dynamic_sizes_of_one_and_zero_are_their_own():
    compiled, count = counted(lambda x: (x * x.shape[0]).sum(), dynamic=True)
    for size in (3, 1, 0, 3, 1, 0):
        x = torch.randn(size, 4)
        assert torch.equal(compiled(x), (x * size).sum())
    assert len(count) == 3


def test_dynamic_variant_serves_only_sizes_that_satisfy_its_guards():
    def function(x):
        return x * 2 if x.shape[0] > 4 else x * 3

    compiled, count = counted(function, dynamic=True)
    for size in (8, 3, 100, 2, 5, 4):
        assert torch.equal(compiled(torch.ones(size)), function(torch.ones(size)))
    assert len(count) == 2


def test_dynamic_sizes_that_were_equal_by_chance():
    compiled, count = counted(lambda x, y: x.sum() + y.sum(), dynamic=True)
    compiled(torch.ones(4), torch.ones(4))
    assert compiled(torch.ones(4), torch.ones(7)) == 11
    assert len(count) == 1


def test_dynamic_sizes_that_must_be_equal():
    compiled, _ = counted(lambda x, y: x + y, dynamic=True)
    compiled(torch.ones(4), torch.ones(4))
    assert torch.equal(compiled(torch.ones(6), torch.ones(6)), torch.full((6,), 2.0))
    with pytest.raises(RuntimeError, match="size"):
        compiled(torch.ones(6), torch.ones(5))


def test_dynamic_second_order():
    compiled, _ = counted(lambda x: (x**3).sum(), dynamic=True)
    for size in (3, 5):
        x = torch.randn(size, dtype=torch.float64, requires_grad=True)
        (first,) = torch.autograd.grad(compiled(x), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        torch.testing.assert_close(second, 6 * x.detach())


def test_dynamic_memory_orders():
    compiled, _ = counted(lambda x: x.contiguous().view(-1) * 2, dynamic=True)
    for x in (torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(5, 4).t(), torch.randn(3, 8)[:, ::2]):
        assert torch.equal(compiled(x), x.reshape(-1) * 2)


def messages_of(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    return [str(warning.message) for warning in caught]


def test_changing_sizes_are_told_once():
    compiled = aot_function(scaled, nop)
    (message,) = messages_of(lambda: [compiled(torch.ones(size)) for size in range(2, 16)])
    assert message.startswith("scaled was compiled 9 times. What keeps changing: x (sizes (2,), then (3,)")
    assert "dynamic=True" in message


def test_changing_values_are_told():
    compiled = aot_function(scaled, nop)
    (message,) = messages_of(lambda: [compiled(torch.ones(3), -factor) for factor in range(1, 13)])
    assert "What keeps changing: factor (value " in message


def test_changing_modes_are_told():
    compiled = aot_function(scaled, nop)

    def run():
        for size in range(2, 7):
            for enabled in (False, True):
                with torch.set_grad_enabled(enabled):
                    compiled(torch.ones(size))

    (message,) = messages_of(run)
    assert "grad mode, autocast, default dtype or deterministic algorithms" in message


def test_few_variants_are_not_worth_a_word():
    compiled = aot_function(scaled, nop)
    assert messages_of(lambda: [compiled(torch.ones(size)) for size in range(2, 8)]) == []


def test_number_of_variants_is_bounded():
    compiled, count = counted(scaled)
    messages_of(lambda: [compiled(torch.ones(3), factor) for factor in range(-70, 0)])
    before = len(count)
    compiled(torch.ones(3), -1)
    assert len(count) == before
    assert torch.equal(compiled(torch.ones(3), -70), torch.full((3,), -70.0))
    assert len(count) == before + 1


@pytest.mark.parametrize("dynamic", [False, True])
def test_lazily_conjugated_or_negated_inputs_are_a_signature_of_their_own(dynamic):
    compiled = aot_function(lambda x: torch.view_as_real(x.resolve_conj().resolve_neg()) * 2, nop, dynamic=dynamic)
    plain = torch.randn(3, 4, dtype=torch.complex64)
    for x in (plain, plain.conj(), plain.transpose(0, 1).conj(), torch._neg_view(plain), plain):
        torch.testing.assert_close(compiled(x), torch.view_as_real(x.resolve_conj().resolve_neg()) * 2)


def test_only_sizes_that_change_become_dynamic():
    compiled, count = counted(lambda x, y: (x @ y.mT) * x.shape[0], dynamic=None)
    for rows, width in ((2, 5), (3, 5), (4, 5), (7, 5), (4, 6), (3, 8)):
        x, y = torch.rand(rows, width), torch.rand(4, width)
        assert torch.equal(compiled(x, y), (x @ y.mT) * rows)
    # One for the first call, one for all numbers of rows, one for all numbers of rows and widths.
    assert len(count) == 3


def test_sizes_that_change_together_are_one_until_they_differ():
    compiled, count = counted(lambda x, y: x.sum() + y.sum(), dynamic=None)
    for first, second in ((2, 2), (3, 3), (9, 9), (4, 6), (6, 4)):
        x, y = torch.rand(first), torch.rand(second)
        torch.testing.assert_close(compiled(x, y), x.sum() + y.sum())
    assert len(count) == 3


def test_a_dynamic_call_without_sizes_is_compiled_once():
    compiled, count = counted(lambda x: x * 2, dynamic=True)
    for _ in range(3):
        compiled(torch.tensor(1.0))
    assert len(count) == 1


def test_a_dynamic_size_may_be_returned_twice():
    compiled, _ = counted(lambda x: (x * 2, x.shape[0], x.shape[0]), dynamic=True)
    for rows in (3, 5):
        doubled, *sizes = compiled(torch.ones(rows, requires_grad=True))
        doubled.sum().backward()
        assert sizes == [rows, rows]
