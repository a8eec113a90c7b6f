"""More calls that must carry over: attention, control flow, state, and one operator each."""

from typing import Any

import torch
from torch import cond, nn
from torch._higher_order_ops import scan, while_loop
from torch.nn import functional

from tests.onnx.torch_calls import DYNAMIC, Call, Run, call, floats, operator

while_loop_operator = torch.ops.higher_order.while_loop

# Attention

QUERY, SHARED = floats(2, 4, 8, 16), floats(2, 2, 8, 16)


def attention(name: str, *args: torch.Tensor, opset: int, **options: Any) -> None:
    def run(query, key, value, mask=None):
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, **options)

    operator(name, run, *args, opset_version=opset)


for version in (18, 23):
    attention(f"attention_{version}", QUERY, QUERY, QUERY, opset=version)
    attention(f"causal_attention_{version}", QUERY, QUERY, QUERY, opset=version, is_causal=True)
    attention(f"masked_attention_{version}", QUERY, QUERY, QUERY, floats(8, 8) > -1, opset=version)
    attention(f"biased_attention_{version}", QUERY, QUERY, QUERY, floats(2, 1, 8, 8), opset=version)
    attention(f"scaled_attention_{version}", QUERY, QUERY, QUERY, opset=version, scale=0.5)
    attention(f"attention_of_shared_heads_{version}", QUERY, SHARED, SHARED, opset=version, enable_gqa=True)


# Control flow


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return cond(x.sum() > 0, lambda x: self.layer(x).sin(), lambda x: self.layer(x) - 1, (x,))


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x):
        def otherwise(x):
            return cond(x.mean() > 3, lambda x: x + self.scale, lambda x: self.inner(x) + 1, (x,))

        return cond(x.sum() <= 0, lambda x: self.inner(x) * self.scale, otherwise, (x,))


@call
def branches() -> Call:
    return Call(Inner(), (floats(3, 4),), {}, ((-floats(3, 4),),))


@call
def branches_in_branches_with_weights() -> Call:
    return Call(Outer(), (floats(3, 4),), {}, ((-floats(3, 4),), (floats(3, 4) + 9,)))


@call
def a_branch_of_several_results() -> Call:
    def run(flag, x):
        return cond(flag, lambda x: (x.cos(), x + 1), lambda x: (x.sin(), x - 1), (x,))

    return Call(Run(run), (torch.tensor(True), floats(3)), {}, ((torch.tensor(False), floats(3)),))


class Loop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)

    def forward(self, start, x):
        return while_loop(lambda i, x: i < 5, lambda i, x: (i + 1, self.layer(x)), (start, x))


@call
def a_loop_with_weights() -> Call:
    return Call(Loop(), (torch.tensor(2), floats(3, 4)), {}, ((torch.tensor(5), floats(3, 4)),))


@call
def a_loop_in_a_loop() -> Call:
    def inner(i, j, x):
        return while_loop_operator(lambda i, j, x: j > 0, lambda i, j, x: (i.clone(), j - 1, x + 3.5), [i, j, x], [])

    def outer(i, j, x):
        i, j, x = inner(i, j, x)
        return i - 1, j + 2, x / 2

    model = Run(lambda i, j, x: while_loop_operator(lambda i, j, x: i > 0, outer, [i, j, x], []))
    args = (torch.tensor(2), torch.tensor(3), floats(3))
    return Call(model, args, {}, ((torch.tensor(3), torch.tensor(1), floats(3)),))


def running_sum(carry: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    total = carry + x
    return total, total.clone()


@call
def a_scan() -> Call:
    return Call(Run(lambda x: scan(running_sum, torch.zeros_like(x[0]), x, dim=0)), (floats(3, 4),))


@call
def a_scan_backwards() -> Call:
    return Call(Run(lambda x: scan(running_sum, torch.zeros_like(x[0]), x, dim=0, reverse=True)), (floats(3, 4),))


@call
def a_scan_of_dynamic_sizes() -> Call:
    options = {"dynamic_shapes": ({0: DYNAMIC, 1: DYNAMIC},)}
    model = Run(lambda x: scan(running_sum, torch.zeros_like(x[0]), x, dim=0))
    return Call(model, (floats(3, 4),), options, ((floats(6, 2),),))


@call
def a_scan_with_weights() -> Call:
    class Scanned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(floats(4))

        def forward(self, x):
            def step(carry, x):
                state = torch.tanh(carry * self.weight + x)
                return state, state * 2

            return scan(step, torch.zeros_like(x[0]), x, dim=0)

    return Call(Scanned(), (floats(3, 4),))


# Layers

IMAGE, SERIES, TOKENS = floats(2, 3, 8, 8), floats(2, 5, 6), torch.tensor([[1, 2, 3], [4, 0, 6]])


def layer(name: str, module: nn.Module, *args: torch.Tensor, **options: Any) -> None:
    operator(name, module.eval(), *args, **options)


torch.manual_seed(0)
layer("convolution", nn.Conv2d(3, 4, 3, padding=1, stride=2), IMAGE)
layer("transposed_convolution", nn.ConvTranspose2d(3, 4, 3, stride=2, output_padding=1), IMAGE)
layer("grouped_convolution", nn.Conv2d(3, 6, 3, groups=3, dilation=2, bias=False), IMAGE)
layer("batch_norm", nn.BatchNorm2d(3), IMAGE)
layer("instance_norm", nn.InstanceNorm2d(3, affine=True), IMAGE)
layer("layer_norm", nn.LayerNorm([5, 6]), SERIES)
layer("max_pool", nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True), IMAGE)
layer("average_pool", nn.AvgPool2d(3, stride=2, padding=1, count_include_pad=False), IMAGE)
layer("adaptive_pool", nn.AdaptiveAvgPool2d((4, 2)), IMAGE)
layer("embedding", nn.Embedding(8, 4), TOKENS)
layer("gru", nn.GRU(6, 4, batch_first=True), SERIES)
layer("lstm", nn.LSTM(6, 4, batch_first=True, bidirectional=True), SERIES)
layer("transformer_layer", nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), SERIES)
layer("upsampled_nearest", nn.Upsample(scale_factor=2), IMAGE)
layer("upsampled_bilinear", nn.Upsample(size=(12, 5), mode="bilinear", align_corners=True), IMAGE)
layer("upsampled_bicubic", nn.Upsample(scale_factor=1.5, mode="bicubic"), IMAGE)
layer("pixel_shuffle", nn.PixelShuffle(2), floats(1, 8, 3, 3))
layer("dropout_and_softmax", nn.Sequential(nn.Dropout(), nn.Softmax(-1)), SERIES)
layer("gelu_of_both_kinds", nn.Sequential(nn.GELU(), nn.GELU(approximate="tanh")), SERIES)

# Operators

INDEX = torch.tensor([2, 0, 1])
operator("indexed", lambda x, i: x[i, :, 1], SERIES.permute(1, 0, 2), INDEX)
operator("indexed_by_two", lambda x, i: x[:, i, i], SERIES, INDEX)
operator("written_by_index", lambda x, i, v: x.index_put((i,), v), floats(4, 5), INDEX, floats(3, 5))
operator("written_by_slice", lambda x: torch.cat([x, x]).index_fill(0, torch.tensor([1]), 7.0), floats(3, 4))
operator("masked", lambda x: x.masked_fill(x > 0, -1.0), SERIES)
operator("gathered", lambda x, i: x.gather(1, i), floats(2, 5), torch.tensor([[0, 4], [3, 1]]))
operator(
    "scattered", lambda x, i, s: x.scatter_add(1, i, s), floats(2, 5), torch.tensor([[0, 4], [3, 3]]), floats(2, 2)
)
operator("largest", lambda x: torch.topk(x, 2, dim=1), SERIES)
operator("sorted", lambda x: torch.sort(x, dim=-1, descending=True), SERIES)
operator("summed_by_einstein", lambda x, y: torch.einsum("bij,bkj->bik", x, y), SERIES, SERIES)
operator("statistics", lambda x: (x.var(1), x.std(0), x.mean(), x.logsumexp(-1), x.norm()), SERIES)
operator("found", lambda x: x.nonzero(), (floats(4, 3) > 0).float())
operator("powers", lambda x: (x**2, 2**x, x.abs() ** 0.5, x**-1), floats(5))
operator("integers_divided", lambda x: (x // 3, x % 3, x / 3, -x // 3), torch.arange(-5, 6))
operator("triangles", lambda x: (x.tril(), x.triu(1)), floats(4, 4))
operator("rolled_and_flipped", lambda x: (x.roll(1, 0), x.flip(1)), SERIES)
operator("repeated", lambda x: (x.repeat(2, 1, 1), x.repeat_interleave(2, 1), x.expand(3, 2, 5, 6)), SERIES)
operator("unfolded", lambda x: functional.unfold(x, 3, padding=1), IMAGE)
operator("padded", lambda x: (functional.pad(x, (1, 2)), functional.pad(x, (1, 1), mode="reflect")), SERIES)
operator("one_hot", lambda x: functional.one_hot(x, 8), TOKENS)
operator("losses", lambda x, t: functional.cross_entropy(x, t), floats(3, 5), torch.tensor([1, 4, 0]))
operator("running_sums", lambda x: (x.cumsum(0), x.cumsum(-1)), SERIES)
operator(
    "sampled_on_a_grid",
    lambda x, g: functional.grid_sample(x, g, align_corners=False),
    IMAGE,
    floats(2, 4, 4, 2).tanh(),
)
operator("spectrogram", lambda x: torch.stft(x, 8, window=torch.hann_window(8), return_complex=True), floats(2, 32))
operator("split_and_joined", lambda x: torch.stack(x.chunk(2, dim=-1)).unbind(0), SERIES)
operator("types_changed", lambda x: (x.int(), x.bool(), x.double(), (x > 0) * x), SERIES)
