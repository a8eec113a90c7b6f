"""Steps that models are made of: convolutions, products, attention, norms, pools, embeddings, recurrences, losses."""

from __future__ import annotations

from tests.fuzz.drafts import SIZES, Draft, family
from tests.fuzz.programs import Code, Name


@family(7)
def convolution(draft: Draft, x: Name) -> None:
    spatial = draft.one_of(1, 1, 2, 2, 3)
    x = draft.with_rank(draft.floating(x), spatial + 2)
    channels, sizes = draft.shape(x)[1], draft.shape(x)[2:]
    groups = draft.one_of(1, 1, channels, *(each for each in (2, 3, 4) if channels % each == 0))
    groups = max(groups, 1)
    outputs = groups * draft.one_of(1, 1, 2, 3) if groups > 1 else draft.one_of(1, 2, 4, 5, 8, max(channels, 1))
    kernel = [draft.one_of(1, min(size, 2), min(size, 3), 3, 4) if size else 1 for size in sizes]
    weight = draft.matching(x, outputs, channels // groups, *kernel)
    bias = draft.matching(x, outputs, scale=1.0) if draft.maybe() else None
    draft.add(
        f"F.conv{spatial}d", x, weight, bias,
        stride=draft.one_of(1, 1, 1, 2, tuple(draft.one_of(1, 2) for _ in kernel)),
        padding=draft.one_of(0, kernel[-1] // 2, kernel[-1] - 1, tuple(draft.one_of(0, 1, 2) for _ in kernel)),
        dilation=draft.one_of(1, 1, 1, 2),
        groups=groups,
    )  # fmt: skip


@family(2)
def same_padding(draft: Draft, x: Name) -> None:
    x = draft.with_rank(draft.floating(x), 3)
    channels = draft.shape(x)[1]
    draft.add("F.conv1d", x, draft.matching(x, 4, channels, draft.one_of(2, 3, 5)), None, padding="same")


@family(3)
def transposed_convolution(draft: Draft, x: Name) -> None:
    spatial = draft.one_of(1, 1, 2, 3)
    x = draft.with_rank(draft.floating(x), spatial + 2)
    channels = draft.shape(x)[1]
    groups = draft.one_of(1, 1, max(channels, 1))
    kernel = [draft.one_of(1, 2, 3) for _ in range(spatial)]
    stride = draft.one_of(1, 2, 2)
    outputs = draft.one_of(1, 2, 3, 4)
    bias = draft.matching(x, outputs * groups, scale=1.0) if draft.maybe() else None
    draft.add(
        f"F.conv_transpose{spatial}d", x, draft.matching(x, channels, outputs, *kernel), bias,
        stride=stride, padding=draft.one_of(0, 0, 1), output_padding=draft.one_of(0, 0, stride - 1), groups=groups,
    )  # fmt: skip


@family(7)
def linear(draft: Draft, x: Name) -> None:
    x = draft.with_rank(draft.floating(x), 1) if not draft.shape(x) else draft.floating(x)
    outputs = draft.one_of(*SIZES)
    bias = draft.matching(x, outputs, scale=1.0) if draft.maybe() else None
    draft.add("F.linear", x, draft.matching(x, outputs, draft.shape(x)[-1]), bias)


@family(5)
def product(draft: Draft, x: Name) -> None:
    x = draft.floating(x)
    shape = draft.shape(x)
    if len(shape) < 2 or draft.maybe(0.3):
        x = draft.with_rank(x, draft.one_of(2, 3))
        shape = draft.shape(x)
    size = draft.one_of(*SIZES)
    match draft.one_of("right", "left", "own", "added", "batched", "einsum", "vector"):
        case "right":
            draft.add("@", x, draft.matching(x, shape[-1], size))
        case "left":
            draft.add("@", draft.matching(x, size, shape[-2]), x)
        case "own":
            draft.add("@", x, draft.add(".transpose", x, -1, -2))
        case "added":
            x = draft.with_rank(x, 2)
            draft.add("torch.addmm", draft.matching(x, size, scale=1.0), x, draft.matching(x, draft.shape(x)[1], size),
                      beta=draft.one_of(1, 0.5), alpha=draft.one_of(1, 2))  # fmt: skip
        case "batched":
            x = draft.with_rank(x, 3)
            batch, _, depth = draft.shape(x)
            draft.add("torch.bmm", x, draft.matching(x, batch, depth, size, scale=0.5))
        case "einsum":
            x = draft.with_rank(x, 3)
            draft.add("torch.einsum", draft.one_of("bij,jk->bki", "bij,jk->bik", "bij,jk->kb"), x,
                      draft.matching(x, draft.shape(x)[-1], size))  # fmt: skip
        case "vector":
            draft.add("torch.mv", draft.with_rank(x, 2), draft.matching(x, shape[-1], scale=0.5))


@family(3)
def attention(draft: Draft, x: Name) -> None:
    x = draft.with_rank(draft.floating(x), 3)
    batch, length, width = draft.shape(x)
    heads = draft.one_of(1, *(each for each in (2, 3, 4) if width % each == 0))
    parts = draft.add("F.linear", x, draft.matching(x, 3 * width, width))
    query, key, value = (
        draft.add(".transpose", draft.add(".reshape", part, batch, length, heads, width // max(heads, 1)), 1, 2)
        for part in draft.add(".chunk", parts, 3, -1, results=3)
    )
    if draft.maybe(0.6):
        mask = draft.matching(x, length, length, kind="constant") if draft.maybe(0.3) else None
        seen = draft.add("F.scaled_dot_product_attention", query, key, value, mask, 0.0, mask is None and draft.maybe())
    else:
        scores = draft.add("/", draft.add("@", query, draft.add(".transpose", key, -1, -2)), 2.0)
        seen = draft.add("@", draft.add("F.softmax", scores, -1), value)
    if draft.maybe(0.8):
        draft.add(".reshape", draft.add(".transpose", seen, 1, 2), batch, length, width)


@family(6)
def norm(draft: Draft, x: Name) -> None:
    x = draft.floating(x)
    if not draft.shape(x):
        x = draft.with_rank(x, 2)
    shape = draft.shape(x)
    kind = draft.one_of("layer", "layer", "group", "batch", "batch", "instance", "rms", "unit")
    if kind in ("layer", "rms"):
        normalized = shape[-1:] if draft.maybe(0.7) else shape[-2:]
        weight = draft.matching(x, *normalized, scale=1.0) if draft.maybe() else None
        bias = (draft.matching(x, *normalized, scale=1.0),) if kind == "layer" and weight and draft.maybe() else ()
        draft.add(f"F.{kind}_norm", x, normalized, weight, *bias)
    elif kind == "unit":
        draft.add("F.normalize", x, dim=draft.dim(x))
    else:
        x = draft.with_rank(x, draft.one_of(3, 4)) if len(shape) < 3 else x
        channels = draft.shape(x)[1]
        weight, bias = (
            (draft.matching(x, channels, scale=1.0), draft.matching(x, channels, scale=1.0))
            if draft.maybe()
            else (None, None)
        )
        if kind == "group":
            groups = draft.one_of(1, max(channels, 1), *(each for each in (2, 3, 4) if channels % each == 0))
            draft.add("F.group_norm", x, groups, weight, bias)
        elif kind == "instance":
            draft.add("F.instance_norm", x, None, None, weight, bias)
        else:
            mean = draft.matching(x, channels, kind="buffer", scale=0.1)
            variance = draft.matching(x, channels, kind="buffer", scale=0.1)
            if not draft.maybe(0.5):
                draft.add("F.batch_norm", x, mean, draft.add(".square", variance), weight, bias, False)
            else:
                draft.add("F.batch_norm", x, mean, variance, weight, bias, True, 0.1)


@family(4)
def pool(draft: Draft, x: Name) -> None:
    spatial = draft.one_of(1, 2, 2, 3)
    x = draft.with_rank(draft.floating(x), spatial + 2)
    kernel = draft.one_of(1, 2, 2, 3)
    stride, padding = draft.one_of(1, 2, kernel), draft.one_of(0, kernel // 2)
    match draft.one_of("max", "max", "avg", "avg", "adaptive_avg", "adaptive_max"):
        case "max":
            # In one dimension, eager lays out what it returns otherwise with gradients than without.
            x = draft.add(".contiguous", x) if spatial == 1 else x
            draft.add(f"F.max_pool{spatial}d", x, kernel, stride, padding, draft.one_of(1, 1, 2), draft.maybe(0.3))
        case "avg":
            draft.add(f"F.avg_pool{spatial}d", x, kernel, stride, padding, draft.maybe(0.3), draft.maybe())
        case adaptive:
            draft.add(
                f"F.{adaptive}_pool{spatial}d",
                x,
                draft.one_of(1, 2, 3, tuple(draft.one_of(1, 2, 5) for _ in range(spatial))),
            )


@family(2)
def resample(draft: Draft, x: Name) -> None:
    x = draft.with_rank(draft.floating(x), 4)
    match draft.one_of("nearest", "bilinear", "bicubic", "shuffle", "unfold"):
        case "shuffle":
            draft.add(draft.one_of("F.pixel_shuffle", "F.pixel_unshuffle"), x, 2)
        case "unfold":
            draft.add("F.unfold", x, draft.one_of(1, 2, 3), 1, draft.one_of(0, 1), draft.one_of(1, 2))
        case "nearest":
            # A size of 5 stays with the factor 1.1, and doubles with 2.1.
            draft.add("F.interpolate", x, scale_factor=draft.one_of(2, 1.5, 0.5, 1.1, 2.1))
        case smooth:
            size = draft.one_of(3, 5, 8), draft.one_of(2, 4, 7)
            changed = {"size": size} if draft.maybe(0.7) else {"scale_factor": draft.one_of(1.1, 2.1, (0.6, 1.2))}
            draft.add("F.interpolate", x, **changed, mode=smooth, align_corners=draft.maybe())


@family(2)
def embedding(draft: Draft, x: Name) -> None:
    rows, width = draft.one_of(5, 7, 16), draft.one_of(*SIZES)
    weight = draft.leaf(rows, width, scale=1.0)
    length = draft.one_of(1, 3, 5)
    match draft.one_of("plain", "plain", "bag", "one_hot", "positions"):
        case "plain":
            places = draft.leaf(
                draft.one_of(1, 2, 3), length, kind="input", dtype=draft.one_of("int64", "int32"), high=rows
            )
            draft.add("F.embedding", places, weight, draft.one_of(None, 0))
        case "bag":
            places = draft.leaf(3, length, kind="input", dtype="int64", high=rows)
            draft.add("F.embedding_bag", places, weight, mode=draft.one_of("sum", "mean", "max"))
        case "one_hot":
            places = draft.leaf(2, length, kind="input", dtype="int64", high=rows)
            draft.add("@", draft.add(".to", draft.add("F.one_hot", places, rows), Code(f"torch.{draft.dtype}")), weight)
        case "positions":
            length = min(rows, draft.shape(x)[-1]) if draft.shape(x) else 1
            draft.add("F.embedding", draft.add("torch.arange", length), weight)


@family(2)
def recurrent(draft: Draft, x: Name) -> None:
    kind = draft.one_of("lstm_cell", "gru_cell", "rnn_tanh_cell", "gru", "lstm")
    x = draft.with_rank(draft.floating(x), 3 if kind in ("gru", "lstm") else 2)
    width, hidden = draft.shape(x)[-1], draft.one_of(1, 3, 4, 8)
    gates = {"lstm": 4, "gru": 3}.get(kind.split("_")[0], 1) * hidden
    weights = [draft.matching(x, gates, width), draft.matching(x, gates, hidden)]
    biases = [draft.matching(x, gates, scale=1.0) for _ in range(2)]
    batch = draft.shape(x)[1] if kind in ("gru", "lstm") else draft.shape(x)[0]
    shape = (1, batch, hidden) if kind in ("gru", "lstm") else (batch, hidden)
    before = draft.matching(x, *shape, kind="input")
    if kind == "gru":
        draft.add("torch.gru", x, before, [*weights, *biases], True, 1, 0.0, False, False, False, results=2)
    elif kind == "lstm":
        cell = draft.matching(x, *shape, kind="input")
        draft.add("torch.lstm", x, [before, cell], [*weights, *biases], True, 1, 0.0, False, False, False, results=3)
    elif kind == "lstm_cell":
        cell = draft.matching(x, *shape, kind="input")
        draft.add("torch.lstm_cell", x, [before, cell], *weights, *biases, results=2)
    else:
        draft.add(f"torch.{kind}", x, before, *weights, *biases)


@family(2)
def loss(draft: Draft, x: Name) -> None:
    x = draft.floating(x)
    match draft.one_of("cross_entropy", "nll", "mse", "binary", "smooth", "divergence"):
        case "cross_entropy" | "nll" as kind:
            x = draft.with_rank(x, 2)
            rows, classes = draft.shape(x)
            target = draft.leaf(rows, kind="input", dtype="int64", high=classes)
            if kind == "nll":
                draft.add(
                    "F.nll_loss", draft.add("F.log_softmax", x, -1), target, reduction=draft.one_of("mean", "none")
                )
            else:
                draft.add("F.cross_entropy", x, target, label_smoothing=draft.one_of(0.0, 0.1),
                          reduction=draft.one_of("mean", "sum", "none"))  # fmt: skip
        case "mse":
            draft.add(
                "F.mse_loss",
                x,
                draft.matching(x, *draft.shape(x), kind="input"),
                reduction=draft.one_of("mean", "none"),
            )
        case "binary":
            target = draft.add("torch.sigmoid", draft.matching(x, *draft.shape(x), kind="input"))
            draft.add("F.binary_cross_entropy_with_logits", x, target)
        case "smooth":
            draft.add(
                draft.one_of("F.smooth_l1_loss", "F.huber_loss"), x, draft.matching(x, *draft.shape(x), kind="input")
            )
        case "divergence":
            if not draft.shape(x):
                x = draft.with_rank(x, 1)
            target = draft.add("F.softmax", draft.matching(x, *draft.shape(x), kind="input"), -1)
            draft.add("F.kl_div", draft.add("F.log_softmax", x, -1), target, reduction="batchmean")
