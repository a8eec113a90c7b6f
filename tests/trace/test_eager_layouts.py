"""Results of operators lie in memory as eager lays them out."""

import random
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import precast
from precast.errors import PrecastError
from precast.trace.eager.fake_mode import make_fake_mode

CHANNELS_LAST = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
ALONG_ROWS = torch.randn(2, 3, 4).mT
CALLS = {
    "log sigmoid": (F.logsigmoid, ALONG_ROWS),
    "roll": (lambda x: x.roll(1, 1), CHANNELS_LAST),
    "roll by nothing": (lambda x: x.roll(3, 1), CHANNELS_LAST),
    "roll of everything": (lambda x: x.roll(1), CHANNELS_LAST),
    "sort of a size of one": (lambda x: x.unfold(1, 1, 1).sort(0)[1], torch.randn(1, 8, 2)),
    "view of a size of one": (lambda x: (x * 2).view(3, 2, 1), torch.empty_strided((3, 2, 1, 1), (2, 1, 1, 2)).zero_()),
    "batch norm that looks like channels last": (
        lambda x: F.batch_norm(x, torch.zeros(2), torch.ones(2)),
        torch.randn(2, 2).mT[None, ..., None],
    ),
    "padding of volumes": (
        lambda x: F.pad(x, (1,) * 6, mode="replicate"),
        CHANNELS_LAST[:, :, None].contiguous(memory_format=torch.channels_last_3d),
    ),
}


def strides(tensor):
    return [int(stride) for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size != 1]


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_lie_as_eagers(name, is_static):
    call, operand = CALLS[name]
    mode = make_fake_mode(ShapeEnv())
    fake = mode.from_tensor(operand, static_shapes=is_static)
    with mode:
        found = call(fake)
    assert strides(found) == strides(call(operand))


PAIRS = {
    "columns and rows": (torch.rand(6, 5).t(), torch.rand(5, 6)),
    "channels last and rows": (CHANNELS_LAST, torch.rand(3, 4, 5)),
    "one column and columns": (torch.rand(5, 1), torch.rand(6, 5).t()),
    "permuted and broadcast": (torch.rand(7, 5, 6).permute(1, 2, 0), torch.rand(5, 6, 1)),
}


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("call", [torch.copysign, torch.floor_divide, torch.xlogy, torch.logaddexp, torch.logical_or])
def test_results_of_operands_that_are_laid_out_differently_lie_as_eagers(call, pair, is_static):
    mode = make_fake_mode(ShapeEnv())
    fakes = [mode.from_tensor(each, static_shapes=is_static) for each in PAIRS[pair]]
    with mode:
        found = call(*fakes)
    assert strides(found) == strides(call(*PAIRS[pair]))


X, Y = torch.rand(1, 4, 1, 3), torch.rand(1, 4, 1, 3)
ELEMENTWISE = {
    "unary": lambda x, y: x.exp(),
    "number": lambda x, y: x * 2,
    "comparison": lambda x, y: x > 0,
    "clamp": lambda x, y: x.clamp(max=3),
    "copied strides": lambda x, y: F.hardtanh(x),
    "copy": lambda x, y: x.clone(),
    "other type": lambda x, y: x.double(),
    "power": lambda x, y: 2**x,
    "masked": lambda x, y: x.masked_fill(y > 0, 1.0),
    "binary": torch.add,
    "broadcast": lambda x, y: x + y[:, :1],
    "interpolated": lambda x, y: torch.lerp(x, y, 0.3),
    "choice": lambda x, y: torch.where(x > y, x, y),
    "loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "logarithm": torch.xlogy,
}
ARRANGEMENTS = {
    "row by row": (X, Y),
    "channels last": (X.contiguous(memory_format=torch.channels_last), Y.contiguous(memory_format=torch.channels_last)),
    "equal steps": (X.as_strided((1, 4, 1, 3), (3, 3, 7, 1)), Y.as_strided((1, 4, 1, 3), (3, 3, 7, 1))),
    "different steps": (X.as_strided((1, 4, 1, 3), (1, 1, 2, 4)), Y.as_strided((1, 4, 1, 3), (3, 3, 1, 1))),
    "with gaps": (torch.rand(1, 4, 1, 6)[..., ::2], Y),
}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_sizes_of_one_of_elementwise_results_have_eagers_strides(name, arrangement):
    operands = ARRANGEMENTS[arrangement]
    mode = make_fake_mode(ShapeEnv())
    fakes = [mode.from_tensor(each, static_shapes=True) for each in operands]
    with mode:
        found = ELEMENTWISE[name](*fakes)
    assert found.stride() == ELEMENTWISE[name](*operands).stride()


@pytest.mark.parametrize("steps", [(20, 1, 5, 1), (1, 1, 1, 4), (20, 20, 1, 4)])
def test_an_indexed_fake_tensor_lies_as_eagers(steps):
    operand, places = torch.empty_strided((1, 1, 4, 5), steps).zero_(), torch.tensor([2, 0])
    mode = make_fake_mode(ShapeEnv())
    fake = mode.from_tensor(operand, static_shapes=True)
    with mode:
        found = fake[:, :, mode.from_tensor(places, static_shapes=True)]
    assert strides(found) == strides(operand[:, :, places])


@pytest.mark.parametrize("is_trained", [True, False])
@pytest.mark.parametrize("call", [F.logsigmoid, lambda x: F.batch_norm(x, None, None, training=True)])
def test_what_is_decomposed_lies_as_the_whole(call, is_trained):
    operand = ALONG_ROWS.clone().requires_grad_(is_trained)
    found, expected = precast.compile(call)(operand), call(operand)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(found, expected)
    if is_trained:
        weights = torch.randn(found.shape)
        gradients = [torch.autograd.grad((each * weights).sum(), operand)[0] for each in (found, expected)]
        torch.testing.assert_close(*gradients)


def any_layout(choose, sizes, dtype):
    order = choose.sample(range(len(sizes)), len(sizes))
    laid_out = torch.randn([sizes[dim] for dim in order], dtype=dtype)
    return laid_out.permute([order.index(dim) for dim in range(len(sizes))])


def test_grouped_convolutions_of_small_images_lie_as_eagers():
    """Eager has other layouts for groups that it convolves one by one, and sizes of 1 say which."""
    choose, mode = random.Random(0), make_fake_mode(ShapeEnv())
    for _ in range(150):
        spatial, groups, channels = choose.choice([1, 2, 2, 3]), choose.choice([2, 3]), choose.choice([1, 1, 2])
        dtype = choose.choice([torch.float64, torch.float32])
        image = any_layout(
            choose, [choose.choice([1, 2]), groups * channels, *choose.choices([1, 2, 3], k=spatial)], dtype
        )
        weight = torch.randn(
            [groups * choose.choice([1, 2]), channels, *choose.choices([1, 2], k=spatial)], dtype=dtype
        )
        settings = [[choose.choice([1, 2])] * spatial, [1] * spatial, [choose.choice([1, 1, 2])] * spatial]
        operands = None, *settings, False, [0] * spatial, groups
        fakes = [mode.from_tensor(each, static_shapes=True) for each in (image, weight)]
        with mode:
            found = torch.ops.aten.convolution.default(*fakes, *operands)
        assert found.stride() == torch.ops.aten.convolution.default(image, weight, *operands).stride()


def test_attention_of_any_layout_lies_as_eagers():
    choose, mode = random.Random(0), make_fake_mode(ShapeEnv())
    for _ in range(40):
        sizes = [choose.choice([1, 2, 3]) for _ in range(4)]
        operands = [any_layout(choose, sizes, torch.float32) for _ in range(3)]
        fakes = [mode.from_tensor(each, static_shapes=True) for each in operands]
        with mode:
            found = F.scaled_dot_product_attention(*fakes)
        assert found.stride() == F.scaled_dot_product_attention(*operands).stride()


def test_what_a_returned_view_shows_is_not_laid_out_otherwise():
    def call(images, weight):
        found = F.conv2d(images, weight)
        return found.unsqueeze(0), F.batch_norm(found, torch.zeros(5), torch.ones(5))

    operands = torch.randn(1, 3, 16, 6, requires_grad=True), torch.randn(5, 3, 3, 4)
    found, expected = precast.compile(call)(*operands), call(*operands)
    assert [strides(each) for each in found] == [strides(each) for each in expected]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


class Comparing(TorchDispatchMode):
    """Every call of an operator is made on fake tensors, too."""

    def __init__(self):
        super().__init__()
        self.different = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
        is_plain = all(each.layout is torch.strided and type(each) is torch.Tensor for each in given)
        if func.namespace != "aten" or func._schema.is_mutable or not is_plain or func in self.different:
            return result
        mode = make_fake_mode(ShapeEnv())
        fakes = pytree.tree_map_only(
            torch.Tensor, lambda each: mode.from_tensor(each, static_shapes=True), (args, kwargs)
        )
        try:
            with mode:
                found = func(*fakes[0], **fakes[1])
        except REFUSALS:
            # Nothing that depends on data is known of fake tensors.
            return result
        pairs = zip(pytree.tree_leaves(result), pytree.tree_leaves(found), strict=False)
        if any(
            isinstance(mine, torch.Tensor) and mine.numel() and strides(mine) != strides(fake) for mine, fake in pairs
        ):
            self.different.add(func)
        return result


def laid_out(tensor, how):
    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.ndim < 2:
        return tensor
    if how == "channels last" and tensor.ndim in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        return tensor.detach().contiguous(memory_format=formats[tensor.ndim])
    return tensor.detach().mT.contiguous().mT


REFUSALS = (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError, AssertionError, PrecastError)
# What is random is drawn by operators of our own.
KNOWN = {"aten.normal.Tensor_Tensor"}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["channels last", "transposed"])
def test_all_operators_of_torch_lie_as_eagers(how):
    comparing = Comparing()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in op_db:
            if not info.supports_dtype(torch.float32, "cpu") or "sparse" in info.name or "jiterator" in info.name:
                continue
            for sample, _ in zip(info.sample_inputs("cpu", torch.float32), range(5), strict=False):
                operands = pytree.tree_map(lambda each: laid_out(each, how), (sample.input, sample.args, sample.kwargs))
                try:
                    with torch.no_grad(), comparing:
                        info(operands[0], *operands[1], **operands[2])
                except REFUSALS:
                    # Some take no other layout.
                    continue
    assert {str(each) for each in comparing.different} <= KNOWN
