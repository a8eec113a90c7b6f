"""Calls after the kinds of models that exporters meet: arguments of every form, sizes that change, layers, losses."""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional

from tests.onnx.torch_calls import AUTO, DYNAMIC, Dim, floats, operator
from tests.onnx.torch_calls_operators import IMAGE, SERIES, layer


class Pair(NamedTuple):
    first: Any
    second: Any


torch.manual_seed(0)
operator("int_out_item", lambda x: x.shape[0] * 2, floats(3, 4), dynamic_shapes=({0: "n"},))
operator(
    "sym_min",
    lambda x: x[: torch.sym_min(x.shape[0], 3)],
    floats(4, 2),
    dynamic_shapes=({0: "n"},),
    others=((floats(2, 2),),),
)
operator(
    "sym_int_div",
    lambda x: x.reshape(x.shape[0] // 2, -1),
    floats(4, 2),
    dynamic_shapes=({0: 2 * Dim("h", min=1, max=10)},),
    others=((floats(6, 2),),),
)
operator(
    "sym_float_scale",
    lambda x: x / torch.sym_float(x.shape[0]) ** 0.5,
    floats(4, 2),
    dynamic_shapes=({0: "n"},),
    others=((floats(5, 2),),),
)
operator(
    "arange_size",
    lambda x: torch.arange(x.shape[0])[:, None] + x,
    floats(4, 2),
    dynamic_shapes=({0: "n"},),
    others=((floats(5, 2),),),
)
operator(
    "arange_step",
    lambda x: torch.arange(0, x.shape[0] * 2, 2),
    floats(4, 2),
    dynamic_shapes=({0: "n"},),
    others=((floats(5, 2),),),
)
operator(
    "ones_full_eye",
    lambda x: (torch.ones(x.shape[0]), torch.full((x.shape[0], 2), 3), torch.eye(x.shape[0]), torch.zeros_like(x)),
    floats(4, 2),
    dynamic_shapes=({0: "n"},),
    others=((floats(5, 2),),),
)
operator(
    "tril_mask",
    lambda x: torch.tril(torch.ones(x.shape[0], x.shape[0], dtype=torch.bool)),
    floats(4, 2),
    dynamic_shapes=({0: "n"},),
    others=((floats(5, 2),),),
)
operator("float_in", lambda x, s: x * s, floats(4, 2), 2.5)
operator("int_in_dyn", lambda n, x: x[:, :n] if False else x + n, 3, floats(4, 2), dynamic_shapes=(DYNAMIC, None))
operator("str_in", lambda x, mode: x.sum() if mode == "sum" else x.mean(), floats(4, 2), "sum")
operator("list_of_floats", lambda x, numbers: x * numbers[0] + numbers[1], floats(4, 2), [1.0, 2.0])
operator("unused_input", lambda x, y: x + 1, floats(4, 2), floats(3))
operator("unused_middle", lambda x, y, z: x + z, floats(4, 2), floats(3), floats(4, 2), input_names=["a", "b", "c"])
operator("keyword_only", lambda x, *, y: x + y, floats(4, 2), kwargs={"y": floats(2)})
operator("var_args", lambda *xs: xs[0] + xs[1], floats(4, 2), floats(2))
operator("var_kwargs", lambda x, **k: x + k["a"] - k["b"], floats(4, 2), kwargs={"a": floats(2), "b": floats(2)})
operator(
    "kwargs_order",
    lambda x, a=None, b=None: x + (0 if a is None else a) + (0 if b is None else b * 2),
    floats(4, 2),
    kwargs={"b": floats(2), "a": floats(2)},
)
operator("none_mid", lambda x, a=None, b=None: x + b, floats(4, 2), None, floats(2))
operator("namedtuple_in", lambda p: p.first + p.second, Pair(floats(3), floats(3)))
operator("namedtuple_out", lambda x: Pair(x + 1, x * 2), floats(3))
operator(
    "list_in_dyn",
    lambda xs: torch.cat(xs),
    [floats(3), floats(4)],
    dynamic_shapes=([{0: "a"}, {0: "b"}],),
    others=(([floats(5), floats(2)],),),
)
operator(
    "reshape_dyn",
    lambda x: x.reshape(x.shape[0], -1, 2).transpose(1, 2),
    floats(3, 4, 6),
    dynamic_shapes=({0: "b", 1: "t"},),
    others=((floats(2, 5, 6),),),
)
operator(
    "flatten_dyn",
    lambda x: x.flatten(1),
    floats(3, 4, 6),
    dynamic_shapes=({0: "b", 1: "t"},),
    others=((floats(2, 5, 6),),),
)
operator(
    "view_merge",
    lambda x: x.view(-1, x.shape[-1]),
    floats(3, 4, 6),
    dynamic_shapes=({0: "b", 1: "t"},),
    others=((floats(2, 5, 6),),),
)
operator(
    "expand_dyn",
    lambda x, y: x.expand(y.shape[0], -1),
    floats(1, 4),
    floats(3, 2),
    dynamic_shapes=(None, {0: "b"}),
    others=((floats(1, 4), floats(5, 2)),),
)
operator(
    "slice_half", lambda x: x[:, : x.shape[1] // 2], floats(3, 6), dynamic_shapes=({1: "t"},), others=((floats(3, 9),),)
)
operator(
    "chunk_static", lambda x: x.chunk(2, dim=1), floats(3, 6), dynamic_shapes=({0: "b"},), others=((floats(5, 6),),)
)
operator(
    "interp_dyn",
    lambda x: functional.interpolate(x, scale_factor=2, mode="nearest"),
    IMAGE,
    dynamic_shapes=({0: "b", 2: "h", 3: "w"},),
    others=((floats(1, 3, 5, 7),),),
)
operator(
    "interp_dyn_bilinear",
    lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False),
    IMAGE,
    dynamic_shapes=({0: "b", 2: "h", 3: "w"},),
    others=((floats(1, 3, 5, 7),),),
)
operator(
    "interp_like",
    lambda x, y: functional.interpolate(x, size=y.shape[2:], mode="bilinear", align_corners=False),
    IMAGE,
    floats(2, 3, 5, 6),
    dynamic_shapes=({2: "h", 3: "w"}, {2: "p", 3: "q"}),
    others=((floats(2, 3, 4, 4), floats(2, 3, 9, 7)),),
)
operator(
    "pad_dyn",
    lambda x: functional.pad(x, (0, 10 - x.shape[-1])),
    floats(3, 6),
    dynamic_shapes=({1: Dim("t", max=9)},),
    others=((floats(3, 4),),),
)
operator(
    "conv_dyn",
    nn.Conv1d(3, 4, 3, padding="same"),
    floats(2, 3, 9),
    dynamic_shapes=({0: "b", 2: "t"},),
    others=((floats(1, 3, 12),),),
)
operator(
    "adaptive_dyn",
    nn.AdaptiveAvgPool2d(1),
    IMAGE,
    dynamic_shapes=({0: "b", 2: "h", 3: "w"},),
    others=((floats(1, 3, 5, 7),),),
)
operator(
    "softmax_mask_dyn",
    lambda x, m: torch.softmax(x.masked_fill(~m, float("-inf")), -1),
    SERIES,
    (SERIES > -1),
    dynamic_shapes=({0: "b", 1: "t"}, {0: "b", 1: "t"}),
)
operator(
    "einsum_dyn",
    lambda x, y: torch.einsum("btd,bsd->bts", x, y),
    SERIES,
    floats(2, 3, 6),
    dynamic_shapes=({0: "b", 1: "t"}, {0: "b", 1: "s"}),
    others=((floats(1, 4, 6), floats(1, 7, 6)),),
)
operator(
    "bmm_dyn",
    lambda x, y: x @ y.transpose(1, 2),
    SERIES,
    floats(2, 3, 6),
    dynamic_shapes=({0: "b", 1: "t"}, {0: "b", 1: "s"}),
    others=((floats(1, 4, 6), floats(1, 7, 6)),),
)
operator("nonzero_dyn", lambda x: x[x > 0], floats(7), dynamic_shapes=({0: "n"},), others=((floats(9),),))
operator(
    "unique_dyn",
    lambda x: torch.unique(x),
    torch.tensor([3, 1, 3, 2]),
    dynamic_shapes=({0: "n"},),
    others=((torch.tensor([1, 1]),),),
)
operator("unique_all", lambda x: torch.unique(x, return_inverse=True, return_counts=True), torch.tensor([3, 1, 3, 2]))
operator("unique_consec", lambda x: torch.unique_consecutive(x), torch.tensor([3, 3, 1, 3, 2, 2]))
operator(
    "repeat_interleave_tensor", lambda x, r: torch.repeat_interleave(x, r, dim=0), floats(3, 2), torch.tensor([1, 2, 3])
)
operator(
    "repeat_dyn",
    lambda x, y: x.repeat(y.shape[0], 1),
    floats(2, 3),
    floats(4),
    dynamic_shapes=(None, {0: "n"}),
    others=((floats(2, 3), floats(2)),),
)
operator(
    "dyn_eq_shape",
    lambda x, y: x + y,
    floats(3, 4),
    floats(3, 4),
    dynamic_shapes=({0: AUTO, 1: AUTO}, {0: AUTO, 1: AUTO}),
    others=((floats(5, 7), floats(5, 7)),),
)
operator(
    "dynamic_all_str_partial",
    lambda x, y: (x.sum(0), y * 2),
    floats(3, 4),
    floats(2, 2),
    dynamic_shapes={"x": {0: "rows"}, "y": None},
)
operator(
    "axes_out_only",
    lambda x: x * 2,
    floats(3, 4),
    input_names=["q"],
    output_names=["o"],
    dynamic_axes={"q": {0: "b"}, "o": {0: "c"}},
    others=((floats(6, 4),),),
)
operator(
    "axes_same_two_inputs",
    lambda x, y: x + y,
    floats(3, 4),
    floats(3, 4),
    input_names=["q", "r"],
    dynamic_axes={"q": {0: "b"}, "r": {0: "b"}},
    others=((floats(6, 4), floats(6, 4)),),
)
layer("conv1d", nn.Conv1d(3, 4, 3, stride=2, padding=1, dilation=2), floats(2, 3, 9))
layer("conv3d", nn.Conv3d(2, 4, 3, padding=1), floats(1, 2, 5, 5, 5))
layer("convT1d", nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1), floats(2, 3, 9))
layer("convT_groups", nn.ConvTranspose2d(4, 4, 3, groups=2, dilation=2), floats(2, 4, 5, 5))
layer("conv_same", nn.Conv2d(3, 4, (3, 2), padding="same"), IMAGE)
layer("conv_reflect", nn.Conv2d(3, 4, 3, padding=1, padding_mode="reflect"), IMAGE)
layer("conv_circular", nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), IMAGE)
layer("conv_nobatch", nn.Conv2d(3, 4, 3), floats(3, 8, 8))
layer("maxpool_idx", nn.MaxPool2d(2, return_indices=True), IMAGE)
layer("maxpool_dil", nn.MaxPool2d(3, dilation=2, stride=1), IMAGE)
layer("avgpool_ceil", nn.AvgPool2d(3, stride=2, ceil_mode=True), IMAGE)
layer("lppool", nn.LPPool2d(2, 2), IMAGE)
layer(
    "maxunpool",
    nn.MaxUnpool2d(2),
    functional.max_pool2d(IMAGE, 2),
    functional.max_pool2d(IMAGE, 2, return_indices=True)[1],
)
layer("adaptmax", nn.AdaptiveMaxPool2d((4, 4)), IMAGE)
layer("adaptavg_odd", nn.AdaptiveAvgPool2d((3, 5)), IMAGE)
layer("adaptavg1d", nn.AdaptiveAvgPool1d(2), SERIES)
layer("gn", nn.GroupNorm(3, 6), floats(2, 6, 4, 4))
layer("ln_noaffine", nn.LayerNorm(6, elementwise_affine=False), SERIES)
layer("rms", nn.RMSNorm(6), SERIES)
layer("inorm1d", nn.InstanceNorm1d(5, affine=False), SERIES)
layer("bn3d", nn.BatchNorm3d(2), floats(2, 2, 3, 3, 3))
layer("lrn", nn.LocalResponseNorm(2), IMAGE)
layer("embbag", nn.EmbeddingBag(10, 3, mode="mean"), torch.tensor([1, 2, 4, 5]), torch.tensor([0, 2]))
layer("rnn", nn.RNN(6, 4, nonlinearity="relu", batch_first=True), SERIES)
layer("gru2", nn.GRU(6, 4, num_layers=2, bidirectional=True), SERIES)
layer("lstm_state", nn.LSTM(6, 4), SERIES, (floats(1, 5, 4), floats(1, 5, 4)))
layer("lstmcell", nn.LSTMCell(6, 4), floats(2, 6))
layer("grucell", nn.GRUCell(6, 4), floats(2, 6))
layer("mha", nn.MultiheadAttention(6, 2, batch_first=True), SERIES, SERIES, SERIES)
layer(
    "mha_mask",
    nn.MultiheadAttention(6, 2, batch_first=True),
    SERIES,
    SERIES,
    SERIES,
    torch.zeros(2, 5, dtype=torch.bool),
)
layer("decoder", nn.TransformerDecoderLayer(6, 2, 8, batch_first=True), SERIES, SERIES)
layer("bilinear", nn.Bilinear(6, 5, 3), floats(4, 6), floats(4, 5))
layer("cosim", nn.CosineSimilarity(), SERIES, floats(2, 5, 6) + 1)
layer("pdist", nn.PairwiseDistance(), floats(3, 4), floats(3, 4) + 1)
layer("threshold", nn.Threshold(0.1, 20), SERIES)
layer("channelshuffle", nn.ChannelShuffle(2), floats(2, 4, 3, 3))
layer("pixelunshuffle", nn.PixelUnshuffle(2), IMAGE)
layer("fold", nn.Fold((4, 4), 2), floats(1, 8, 9))
layer("unflatten", nn.Unflatten(1, (1, 5)), SERIES)
layer("upsample_area", nn.Upsample(size=(4, 4), mode="area"), IMAGE)
layer("upsample_3d", nn.Upsample(scale_factor=2, mode="trilinear", align_corners=False), floats(1, 1, 3, 3, 3))
layer("upsample_1d", nn.Upsample(scale_factor=2, mode="linear", align_corners=True), SERIES)
layer("upsample_nearest_exact", nn.Upsample(size=(5, 7), mode="nearest-exact"), IMAGE)
operator("antialias", lambda x: functional.interpolate(x, size=(4, 4), mode="bilinear", antialias=True), IMAGE)
operator("loss_bce", lambda x, y: functional.binary_cross_entropy_with_logits(x, y), SERIES, (SERIES > 0).float())
operator(
    "loss_nll_ignore",
    lambda x, t: functional.nll_loss(functional.log_softmax(x, -1), t, ignore_index=1),
    floats(3, 5),
    torch.tensor([1, 4, 0]),
)
operator(
    "loss_kl",
    lambda x, y: functional.kl_div(functional.log_softmax(x, -1), functional.softmax(y, -1), reduction="batchmean"),
    SERIES,
    SERIES + 1,
)
operator(
    "loss_2d", lambda x, t: functional.cross_entropy(x, t), floats(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.int64)
)
for name in (
    "ELU", "Hardshrink", "Hardsigmoid", "Hardtanh", "Hardswish", "LeakyReLU", "LogSigmoid", "PReLU", "ReLU6", "SELU",
    "CELU", "SiLU", "Mish", "Softplus", "Softshrink", "Softsign", "Tanhshrink",
):  # fmt: skip
    layer(f"activation_{name}", getattr(nn, name)(), SERIES)
for name in ("ReflectionPad2d", "ReplicationPad2d", "ZeroPad2d", "CircularPad2d"):
    layer(f"padding_{name}", getattr(nn, name)(1), IMAGE)
for name in ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"):
    operator(f"loss_{name}", getattr(functional, name), SERIES, SERIES + 1)
