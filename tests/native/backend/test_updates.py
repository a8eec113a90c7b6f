"""Native programs write the new values of inputs where the old ones lie; the caller sees what eager does."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import precast


class CopyCount(torch.autograd.profiler.profile):
    """How many times a tensor is copied into another; not by a mode, under which calls run uncompiled."""

    @property
    def count(self) -> int:
        return sum(event.name == "aten::copy_" and not _is_part(event) for event in self.function_events)


def _is_part(event: Any) -> bool:
    """Whether another operator, such as clone, copies as a part of what it does."""
    return event.cpu_parent is not None and event.cpu_parent.name.startswith("aten::")


def check(function: Callable[..., Any], *inputs: torch.Tensor, copies: int = 0, calls: int = 2) -> None:
    """Results, inputs afterwards and their versions are eager's; so many updates are copied."""
    compiled = precast.compile(function)
    theirs = [_alike(each) for each in inputs]
    ours = [_alike(each) for each in inputs]
    addresses = [each.data_ptr() for each in ours]
    for _ in range(calls):
        expected = function(*theirs)
        before = [each._version for each in ours]
        results = compiled(*ours)
        if expected is not None:
            torch.testing.assert_close(results, expected)
        torch.testing.assert_close(ours, theirs)
        assert [each.stride() for each in ours] == [each.stride() for each in theirs]
        changed = [after._version > version for after, version in zip(ours, before, strict=True)]
        assert changed == [each._version > 0 for each in theirs]
    assert addresses == [each.data_ptr() for each in ours]
    with CopyCount() as counted:
        compiled(*ours)
    assert counted.count == copies


def _alike(tensor: torch.Tensor) -> torch.Tensor:
    """A copy that lies the same way in memory of its own."""
    whole = tensor if tensor._base is None else tensor._base
    return whole.detach().clone().as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def randn(*sizes: int, **options: Any) -> torch.Tensor:
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0), **options)


def descend(p: torch.Tensor, g: torch.Tensor) -> None:
    p.add_(g, alpha=-0.1)


def test_an_update_is_written_where_the_input_lies():
    check(descend, randn(64, 32), randn(64, 32))


def test_the_interpreter_copies():
    p, g = randn(4), randn(4)
    compiled = precast.compile(descend, backend="interpret")
    compiled(p, g)
    with CopyCount() as counted:
        compiled(p, g)
    assert counted.count == 1


def adamw(
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    means: Sequence[torch.Tensor],
    squares: Sequence[torch.Tensor],
    steps: Sequence[torch.Tensor],
) -> None:
    with torch.no_grad():
        for p, g, m, v, step in zip(parameters, gradients, means, squares, steps, strict=True):
            step.add_(1)
            p.mul_(1 - 1e-3 * 1e-2)
            m.lerp_(g, 0.1)
            v.mul_(0.999).addcmul_(g, g, value=0.001)
            first, second = 1 - 0.9**step, 1 - 0.999**step
            p.sub_(1e-3 / first * m / ((v / second).sqrt() + 1e-8))


@pytest.mark.parametrize("threads", [1, 2])
def test_an_optimizer_updates_parameters_and_its_state(threads):
    shapes = [(3, 40), (40,), (7, 5, 2), (), (1,), (3000, 50)]

    def flat(*tensors):
        count = len(shapes)
        adamw(*(tensors[start : start + count] for start in range(0, 5 * count, count)))

    inputs = [randn(*shape) for _ in range(4) for shape in shapes]
    inputs[3 * len(shapes) :] = [each.abs() for each in inputs[3 * len(shapes) :]]
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(flat, *inputs, *(torch.zeros(()) for _ in shapes))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    "layout",
    [
        randn(6, 8).t(),
        randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        randn(1, 5, 1),
        randn(0, 3),
        randn(),
        randn(4, 6)[2:],
        randn(4, 6).half(),
        torch.arange(12).reshape(3, 4),
    ],
    ids=["transposed", "channels last", "size one", "empty", "zero-dim", "rows", "half", "whole numbers"],
)
def test_dense_layouts_and_types(layout):
    check(lambda x: (x.mul_(2), None)[1], layout)


def test_what_does_not_lie_densely_is_copied():
    check(lambda x: (x.mul_(2), None)[1], randn(4, 6)[:, 1:3], copies=1)


def test_an_old_value_that_is_returned_stays():
    check(lambda x: (x * 1, x.add_(1))[0], randn(5, 3))


def test_a_result_that_is_the_new_value_has_memory_of_its_own():
    def function(x):
        x.add_(1)
        return x.clone()

    x = randn(4)
    result = precast.compile(function)(x)
    assert result.data_ptr() != x.data_ptr()
    torch.testing.assert_close(result, x)


def test_the_input_itself_may_be_returned():
    def function(x):
        return x.mul_(2)

    x = randn(4)
    assert precast.compile(function)(x) is x
    check(function, randn(300))


def test_two_inputs_that_are_exchanged():
    def function(a, b):
        old = a.clone()
        a.copy_(b)
        b.copy_(old)

    check(function, randn(4, 3), torch.ones(4, 3), copies=1)


def test_two_inputs_that_depend_on_each_others_old_values():
    def function(a, b):
        total, difference = a + b, a - b
        a.copy_(total)
        b.copy_(difference)

    check(function, randn(40), torch.ones(40), copies=1)


def test_an_old_value_that_other_elements_need_is_copied():
    check(lambda x: (x.add_(x.flip(0)), None)[1], randn(64, 8), copies=1)
    check(lambda x: (x.sub_(x.mean(0)), None)[1], randn(64, 8))


def test_an_old_value_that_is_read_after_the_update_comes_first():
    def function(x, y):
        old = x.clone()
        x.add_(1)
        return (old @ y).sum() + x.sum()

    check(function, randn(8, 8), randn(8, 8))


def test_the_same_tensor_twice_is_like_eager():
    def function(a, b):
        a.add_(b)
        return b * 2

    ours, theirs = randn(6), randn(6)
    expected, result = function(theirs, theirs), precast.compile(function)(ours, ours)
    torch.testing.assert_close((result, ours), (expected, theirs))


def test_inputs_that_share_memory_are_like_eager():
    def function(a, b):
        a.mul_(2)
        return b + a

    ours, theirs = randn(6, 6), randn(6, 6)
    expected = function(theirs[0], theirs[:, 0])
    result = precast.compile(function)(ours[0], ours[:, 0])
    torch.testing.assert_close((result, ours), (expected, theirs))


def test_an_expanded_input_is_refused_as_in_eager():
    with pytest.raises(RuntimeError):
        precast.compile(lambda x: (x.add_(1), None)[1])(randn(1, 3).expand(4, 3))


def test_memory_that_is_not_aligned_takes_the_update():
    memory = torch.zeros(4 * 5 + 1, dtype=torch.uint8)
    x = torch.frombuffer(memory.numpy().data, dtype=torch.float32, count=5, offset=1)
    precast.compile(lambda x: (x.add_(1.5), None)[1])(x)
    assert x.tolist() == [1.5] * 5


def test_a_type_that_changes_on_the_way():
    def function(x, y):
        x.add_(y)
        x.copy_(x.double() * 0.5)

    check(function, randn(5, 4).half(), randn(5, 4).half())
    check(lambda x, y: (x.copy_(y), None)[1], torch.zeros(4), torch.arange(4))


def test_running_statistics_of_a_batch_norm():
    torch.manual_seed(0)
    ours, theirs = torch.nn.BatchNorm2d(3), torch.nn.BatchNorm2d(3)
    compiled = precast.compile(ours)
    for number in range(3):
        x = randn(2, 3, 4, 4) + number
        result, expected = compiled(x), theirs(x)
        result.sum().backward()
        expected.sum().backward()
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(dict(ours.state_dict()), dict(theirs.state_dict()))
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad)
    version = ours.running_mean._version
    compiled(x)
    assert ours.running_mean._version == version + 1


def test_a_buffer_that_gradients_do_not_depend_on():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x):
            result = self.layer(x)
            self.total += result.detach().sum(0)
            return result

    module = Counting()
    compiled = precast.compile(module)
    for number in range(1, 4):
        with CopyCount() as counted:
            result = compiled(torch.ones(2, 3))
        result.sum().backward()
        torch.testing.assert_close(module.total, number * result.detach().sum(0))
        assert module.total._version == number
    assert counted.count == 0


def test_what_gradients_are_computed_from_stays():
    def function(x, w):
        y = (x.clone() * w).sin()
        with torch.no_grad():
            x.add_(1)
        return y

    results = []
    for call in (function, precast.compile(function)):
        x, w = randn(5), torch.ones(5, requires_grad=True)
        call(x, w).sum().backward()
        results.append((x, w.grad))
    torch.testing.assert_close(results[1], results[0])


def test_a_parameter_that_autograd_saved_cannot_be_used_after_its_update():
    w, x = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    product = w * x

    def function(w):
        with torch.no_grad():
            w.mul_(2)

    precast.compile(function)(w)
    assert w.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_inference_tensors_are_updated_in_inference_mode_only():
    compiled = precast.compile(descend)
    with torch.inference_mode():
        p, g = torch.ones(3), torch.ones(3)
        compiled(p, g)
    torch.testing.assert_close(p.tolist(), [0.9] * 3)
    with pytest.raises(RuntimeError, match="nference"):
        compiled(p, g)
    torch.testing.assert_close(p.tolist(), [0.9] * 3)


def test_data_and_no_grad():
    x = torch.zeros(3)
    precast.compile(lambda x: (x.data.add_(1), None)[1])(x)
    assert x.tolist() == [1.0] * 3
    with torch.no_grad():
        check(descend, randn(4), randn(4))


def test_a_check_that_fails_leaves_inputs_as_eager_does():
    def function(x, table, index):
        row = table[index]
        x.add_(1)
        return row * 2

    x = torch.zeros(3)
    compiled = precast.compile(function)
    with pytest.raises(IndexError):
        compiled(x, randn(4, 3), torch.tensor([7]))
    assert x.tolist() == [0.0] * 3
    compiled(x, randn(4, 3), torch.tensor([1]))
    assert x.tolist() == [1.0] * 3


def test_dynamic_sizes():
    compiled = precast.compile(descend, dynamic=True)
    for size in (3, 8, 5):
        p, g = torch.zeros(size, 4), torch.ones(size, 4)
        compiled(p, g)
        torch.testing.assert_close(p, torch.full((size, 4), -0.1))


def test_what_torch_runs_in_between():
    def function(x, y):
        x.mul_(2)
        spectrum = torch.view_as_real(torch.view_as_complex(y).tanh())
        y.add_(spectrum)
        return x + spectrum.sum()

    check(function, randn(4), randn(3, 2), copies=0)


def test_torch_compile_hands_over_updates():
    x = torch.zeros(8)
    compiled = torch.compile(lambda x: x.add_(1).sum(), backend="precast")
    assert compiled(x).item() == 8
    assert compiled(x).item() == 16


CACHE = randn(3, 16, 8)


@pytest.mark.parametrize(
    "function",
    [
        lambda cache, new, index: cache[:, 5].copy_(new[:, 0]) * 2,
        lambda cache, new, index: cache[:, 2:5].copy_(new) * 2,
        lambda cache, new, index: cache[:, 2:10:3].copy_(new) * 2,
        lambda cache, new, index: cache[1, 3].add_(new[0, 0]) * 2,
        lambda cache, new, index: cache.index_copy_(1, index, new).sum(-1),
        lambda cache, new, index: (cache @ new.transpose(1, 2)).sum() * cache[:, 5:6].add_(1).sum(),
        lambda cache, new, index: cache.index_add_(1, index % 2, new) * 1,
        lambda cache, new, index: cache.masked_fill_(cache > 0, 1.0) * 2,
        lambda cache, new, index: cache.view(-1)[7:11].zero_() + 1,
        lambda cache, new, index: cache.tril_().sum(),
    ],
    ids=["select", "slice", "steps", "nested", "index", "read before", "repeated", "mask", "viewed", "triangle"],
)
def test_a_part_that_is_written(function):
    check(function, CACHE, randn(3, 3, 8), torch.tensor([7, 2, 1]))


def test_an_index_that_is_out_of_bounds_changes_nothing():
    def function(cache, index, new):
        cache[:, index] = new

    compiled, cache = precast.compile(function), torch.zeros(3, 16, 8)
    compiled(cache, torch.tensor([1, -2]), torch.ones(3, 2, 8))
    assert cache.sum() == 48
    with pytest.raises(IndexError):
        compiled(cache, torch.tensor([3, 16]), torch.ones(3, 2, 8))
    assert cache.sum() == 48


def test_elements_that_are_written_from_others_of_the_same_tensor():
    def function(cache, index):
        cache[:, index] = cache[:, index + 1]

    ours, theirs = CACHE.clone(), CACHE.clone()
    precast.compile(function)(ours, torch.tensor([4, 5, 6]))
    function(theirs, torch.tensor([4, 5, 6]))
    torch.testing.assert_close(ours, theirs)
