"""Compiled programs called in process, through the C interface."""

import gc
import threading
import weakref

import ml_dtypes
import numpy as np
import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.errors import InputTypeError, InputValueError
from precast.native.rules import lower_graph
from precast.runtime import open_library
from tests.native.lowering.numbers import assert_right, doubled
from tests.native.lowering.pipeline import (
    build_entries,
    bullet_inputs,
    lowered,
    make_entry,
    open_entries,
    tracer_bullet,
)


def compiled(function, *inputs, cache, dynamic=False):
    return open_entries([make_entry(lowered(function, *inputs, dynamic=dynamic))], cache)["forward"]


def assert_bullet_right(outputs, inputs):
    exact = tracer_bullet(*doubled(inputs))
    for mine, eager, reference in zip(outputs, tracer_bullet(*inputs), exact, strict=True):
        assert_right(torch.as_tensor(mine), eager, reference, sums=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(8, 4, 6), (1, 1, 1), (33, 65, 130)])
def test_the_tracer_bullet_against_float64(build_cache, dtype, sizes):
    inputs = bullet_inputs(dtype, *sizes)
    assert_bullet_right(compiled(tracer_bullet, *inputs, cache=build_cache)(*inputs), inputs)


def test_one_library_serves_all_sizes(build_cache):
    forward = compiled(tracer_bullet, *bullet_inputs(), cache=build_cache, dynamic=True)
    for sizes in [(8, 4, 6), (2, 3, 5), (64, 128, 200), (3, 7, 1)]:
        inputs = bullet_inputs(torch.float32, *sizes)
        outputs = forward(*inputs)
        assert [tuple(each.shape) for each in outputs] == [(), sizes[:2], sizes[1:], sizes[2:]]
        assert_bullet_right(outputs, inputs)


def test_views_with_dynamic_sizes(build_cache):
    def function(x):
        return x.reshape(-1).exp().view(x.shape).t().reshape(x.shape[1], -1), torch.cat([x, x * 2], 1)[1:].sum(0)

    forward = compiled(function, torch.randn(4, 6), cache=build_cache, dynamic=True)
    for shape in [(4, 6), (2, 3), (9, 5)]:
        x = torch.randn(shape)
        for mine, eager in zip(forward(x), function(x), strict=True):
            torch.testing.assert_close(mine, eager)


def test_inputs_may_have_any_strides(build_cache):
    x, w, b, tangent = bullet_inputs()
    forward = compiled(tracer_bullet, x, w, b, tangent, cache=build_cache)
    strange = [x.t().contiguous().t(), w.repeat_interleave(2, 1)[:, ::2], b.repeat(2)[:6], tangent]
    assert_bullet_right(forward(*strange), [x, w, b, tangent])


def test_inputs_may_lie_at_odd_addresses(build_cache):
    memory = np.zeros(4 * 8 + 1, np.uint8)
    x = memory[1:].view(np.float32)
    x[:] = np.arange(8)
    assert x.ctypes.data % 4
    (result,) = compiled(lambda x: x * 2, torch.ones(8), cache=build_cache)(x)
    assert result.tolist() == [2.0 * number for number in range(8)]


def test_outputs_have_eagers_strides(build_cache):
    function = lambda x: (x * 2, x.t() + 1)  # noqa: E731
    x = torch.randn(3, 5)
    for mine, eager in zip(compiled(function, x, cache=build_cache)(x), function(x), strict=True):
        assert mine.stride() == eager.stride()


def test_numpy_in_gives_numpy_out(build_cache):
    outputs = compiled(tracer_bullet, *bullet_inputs(), cache=build_cache)(*(each.numpy() for each in bullet_inputs()))
    assert all(isinstance(each, np.ndarray) for each in outputs)
    assert_bullet_right(outputs, bullet_inputs())


def test_anything_with_dlpack_is_taken(build_cache):
    class Wrapped:
        def __init__(self, array):
            self.array, self.shape = array, array.shape

        def __dlpack__(self, **options):
            return self.array.__dlpack__(**options)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    forward = compiled(tracer_bullet, *bullet_inputs(), cache=build_cache)
    assert_bullet_right(forward(*(Wrapped(each.numpy()) for each in bullet_inputs())), bullet_inputs())


def test_two_threads_run_one_model_at_the_same_time(build_cache):
    forward = compiled(tracer_bullet, *bullet_inputs(), cache=build_cache, dynamic=True)
    wrong = []

    def work(seed):
        for rows in range(1, 60):
            inputs = bullet_inputs(torch.float32, rows, 8 + seed, 16)
            for mine, eager in zip(forward(*inputs), tracer_bullet(*inputs), strict=True):
                if not torch.allclose(mine, eager, rtol=1e-4, atol=1e-4):
                    wrong.append((seed, rows))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_result_does_not_depend_on_the_number_of_threads(build_cache):
    x = torch.randn(400, 300)
    forward = compiled(lambda x: (x.exp().sum(), x.sum(0), x.softmax(1)), x, cache=build_cache)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = forward(x)
        torch.set_num_threads(2)
        two = forward(x)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.double(), "expected dtype code 2 with 32 bits, got 2 with 64"),
        (lambda x: x[0], "expected 2 dimensions, got 1"),
        (lambda x: x[:, :3], "dimension 1 is 3, expected 4"),
    ],
)
def test_an_input_that_does_not_fit_is_named(build_cache, change, message):
    x, *rest = bullet_inputs()
    with pytest.raises(ValueError, match=f"entry 'forward', input 'arg0_1': {message}"):
        compiled(tracer_bullet, x, *rest, cache=build_cache)(change(x), *rest)


def test_dynamic_sizes_that_contradict_each_other_are_refused(build_cache):
    x, w, b, tangent = bullet_inputs()
    forward = compiled(tracer_bullet, x, w, b, tangent, cache=build_cache, dynamic=True)
    with pytest.raises(ValueError, match="input 'arg1_1': dimension 0 is 4, expected 3"):
        forward(x[:, :3].contiguous(), w, b, tangent)


def test_what_is_no_tensor_is_refused(build_cache):
    forward = compiled(lambda x: x + 1, torch.ones(2), cache=build_cache)
    with pytest.raises(InputTypeError, match="arg0_1 is of type list"):
        forward([1.0, 2.0])
    with pytest.raises(InputTypeError, match="uint32"):
        forward(np.zeros(2, np.uint32))
    with pytest.raises(InputValueError, match="expected dtype code 2"):
        forward(np.zeros(2, np.complex64))
    with pytest.raises(InputValueError, match="takes 1 tensors, got 2"):
        forward(torch.ones(2), torch.ones(2))


def test_bfloat16_comes_back_to_numpy_as_ml_dtypes_has_it(build_cache):
    forward = compiled(lambda x: x.to(torch.bfloat16), torch.ones(2), cache=build_cache)
    (result,) = forward(np.ones(2, np.float32))
    assert result.dtype == ml_dtypes.bfloat16
    assert result.tolist() == [1, 1]


def test_weights_are_bound_by_name(bullet_library):
    x, w, b, tangent = bullet_inputs()
    model = open_library(bullet_library.path, needs=bullet_library.needs, weights={"layer.w": w, "layer.b": b})
    assert_bullet_right(model["forward"](x, tangent), [x, w, b, tangent])


def test_a_missing_weight_is_named(bullet_library):
    with pytest.raises(ValueError, match=r"the model needs the weight 'layer\.b'"):
        open_library(bullet_library.path, needs=bullet_library.needs, weights={"layer.w": bullet_inputs()[1]})


def test_a_fallback_step_calls_back_into_torch(build_cache):
    def function(x):
        return torch.sort(x.exp(), dim=0)[0].sum(1), torch.linalg.inv(x @ x.t() + torch.eye(x.shape[0]))

    for dynamic in (False, True):
        x = torch.randn(4, 5)
        forward = compiled(function, x, cache=build_cache, dynamic=dynamic)
        for mine, eager in zip(forward(x), function(x), strict=True):
            torch.testing.assert_close(mine, eager)


def test_an_error_in_a_fallback_comes_back_as_it_was(build_cache):
    forward = compiled(
        lambda x: torch.linalg.ldl_factor_ex(x, check_errors=True).LD + 1, torch.eye(3), cache=build_cache
    )
    with pytest.raises(RuntimeError, match="ldl_factor"):
        forward(torch.zeros(3, 3))
    torch.testing.assert_close(forward(torch.eye(3))[0], torch.eye(3) + 1)


def test_a_program_with_fallbacks_is_refused_without_one(build_cache):
    library = build_entries(
        [make_entry(lowered(lambda x: torch.linalg.ldl_factor(x).LD * 2, torch.eye(3)))], build_cache
    )
    with pytest.raises(ValueError, match="needs a fallback for 1 steps"):
        open_library(library.path, needs=library.needs)


def test_a_model_lives_as_long_as_its_entries(build_cache):
    x = torch.ones(2)
    model = open_entries([make_entry(lowered(lambda x: x + 1, x))], build_cache)
    opened = weakref.ref(model["forward"].model)
    entry = model["forward"]
    del model
    gc.collect()
    assert entry(x)[0].tolist() == [2.0, 2.0]
    del entry
    gc.collect()
    assert opened() is None


def test_forward_and_backward_are_two_entries_that_share_weights_and_saved_values(build_cache):
    def forward(x, w, b):
        y = x @ w + b
        return torch.nn.functional.gelu(y).sum(), y

    def backward(y, x, w, tangent):
        gradient = torch.ops.aten.gelu_backward(tangent.expand(y.shape), y)
        return gradient @ w.t(), x.t() @ gradient, gradient.sum(0)

    x, w, b, tangent = bullet_inputs()
    y = x @ w + b
    entries = [
        make_entry(lowered(forward, x, w, b, name="forward"), {"arg1_1": "w", "arg2_1": "b"}),
        make_entry(lowered(backward, y, x, w, tangent, name="backward"), {"arg2_1": "w"}),
    ]
    model = open_entries(entries, build_cache, {"w": w, "b": b})
    result, saved = model["forward"](x)
    assert_bullet_right([result, *model["backward"](saved, x, tangent)], [x, w, b, tangent])


def test_a_size_may_be_an_argument_of_its_own(build_cache):
    mode = FakeTensorMode(shape_env=ShapeEnv())
    size = mode.from_tensor(torch.ones(5), static_shapes=False).shape[0]
    with mode:
        value = mode.from_tensor(torch.ones(()), static_shapes=True)
        graph = make_fx(lambda size, value: (value.expand(size) * 2, size))(size, value)
    model = open_entries([make_entry(lower_graph(graph, name="forward"))], build_cache)
    (doubled_value,) = model["forward"](7, torch.tensor(1.5))
    assert doubled_value.tolist() == [3.0] * 7
    with pytest.raises(ValueError, match="a size is negative"):
        model["forward"](-7, torch.tensor(1.5))


def test_inputs_may_lie_otherwise_from_call_to_call(build_cache):
    entry = compiled(lambda x, y: x * 2 + y, torch.ones(3, 4), torch.ones(3, 4), cache=build_cache)
    shapes = [torch.randn(3, 4), torch.randn(4, 3).t(), torch.randn(3, 8)[:, ::2], torch.randn(3, 4)]
    for x in shapes:
        for y in shapes:
            (result,) = entry(x, y)
            assert torch.equal(result, x * 2 + y)
    (result,) = entry(shapes[1].numpy(), shapes[0].numpy())
    assert isinstance(result, np.ndarray)
