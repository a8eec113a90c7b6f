"""Steps as models write them: rotary embeddings, windows, masks, caches, experts, scans, numbers of mixed types."""

from __future__ import annotations

from tests.fuzz.drafts import Draft, NotTakenError, family
from tests.fuzz.programs import Code, Name, Step

EINSUMS = (
    ("bij,bkj->bik", 1),
    ("bij,bkj->bki", 1),
    ("bij,bij->bi", 0),
    ("bij,bij->", 0),
    ("bij,bik->bjk", 0),
    ("bij->bji", None),
    ("bij->j", None),
    ("...i,...i->...", 0),
    ("...ij->...ji", None),
    ("bii->bi", None),
    ("bij,bkj,bi->bk", 1),
)


def inner(function: str, *operands: object, **keywords: object) -> Step:
    """A call that is an operand of another."""
    return Step((), function, operands, tuple(keywords.items()))


def angles(draft: Draft, x: Name, length: int, width: int) -> Name:
    """One angle for each position and frequency, as rotary embeddings have them."""
    steps = draft.add("torch.arange", length, dtype=Code("torch.float32"))
    rates = draft.add("**", 10.0, draft.add("/", draft.add("torch.arange", 0, width), -max(width, 1)))
    each = draft.add("[]", steps, slice(None), None)
    both = draft.add("torch.outer", steps, rates) if draft.maybe() else draft.add("*", each, rates)
    return draft.add(".to", both, Code(f"torch.{draft.dtype_of(x)}"))


@family(3)
def rotary(draft: Draft, x: Name) -> None:
    x = draft.with_rank(draft.floating(x), draft.one_of(3, 4))
    length, width = draft.shape(x)[-2:]
    if width % 2:
        x = draft.add("F.pad", x, [0, 1])
        width += 1
    half = draft.one_of("halves", "pairs", "complex", "outer halves")
    turned = angles(draft, x, length, width // 2)
    if half == "complex":
        wide = Code("torch.float64" if draft.dtype_of(x) == "float64" else "torch.float32")
        pairs = draft.add(".reshape", draft.add(".to", x, wide), *draft.shape(x)[:-1], -1, 2)
        turned = draft.add(".to", turned, wide)
        unit = inner("torch.polar", inner("torch.ones_like", turned), turned)
        product = inner("*", inner("torch.view_as_complex", pairs), unit)
        draft.add(".flatten", draft.add("torch.view_as_real", product), -2)
        return
    if half == "pairs":
        even, odd = draft.add("[]", x, ..., slice(0, None, 2)), draft.add("[]", x, ..., slice(1, None, 2))
    else:
        even, odd = draft.add(".chunk", x, 2, -1, results=2)
    cosine, sine = draft.add("torch.cos", turned), draft.add("torch.sin", turned)
    first = draft.add("-", draft.add("*", even, cosine), draft.add("*", odd, sine))
    second = draft.add("+", draft.add("*", odd, cosine), draft.add("*", even, sine))
    if half == "pairs":
        draft.add(".flatten", draft.add("torch.stack", [first, second], -1), -2)
    else:
        draft.add("torch.cat", [first, second], -1)


@family(2)
def windows(draft: Draft, x: Name) -> None:
    """Images in windows and back, as in Swin, maybe rolled."""
    size = draft.one_of(1, 2, 3)
    x = draft.with_rank(x, 4)
    batch, rows, columns, channels = draft.shape(x)
    x = draft.add("F.pad", x, [0, 0, 0, -columns % size, 0, -rows % size])
    rows, columns = -(-rows // size), -(-columns // size)
    if shift := draft.one_of(0, 0, 1):
        x = draft.add("torch.roll", x, (-shift, -shift), (1, 2))
    parts = draft.add(".view" if draft.maybe(0.3) else ".reshape", x, batch, rows, size, columns, size, channels)
    parts = draft.add(".reshape", draft.add(".permute", parts, 0, 1, 3, 2, 4, 5), -1, size * size, channels)
    if draft.maybe():
        parts = draft.add("F.softmax", draft.floating(parts), 1)
    if draft.maybe(0.7):
        back = draft.add(".reshape", parts, batch, rows, columns, size, size, channels)
        back = draft.add(
            ".reshape", draft.add(".permute", back, 0, 1, 3, 2, 4, 5), batch, rows * size, columns * size, -1
        )
        draft.add("torch.roll", back, (shift, shift), (1, 2))


def mask(draft: Draft, rows: int, columns: int) -> Name:
    """What may be seen: the past, a window of it, or what is no padding."""
    match draft.one_of("tril", "positions", "window", "lengths", "drawn"):
        case "tril":
            return draft.add(".tril", draft.add("torch.ones", rows, columns, dtype=Code("torch.bool")), columns - rows)
        case "positions":
            ahead = inner("[]", inner("torch.arange", rows), slice(None), None)
            return draft.add(">=", ahead, inner("torch.arange", columns))
        case "window":
            far = inner(
                "-", inner("[]", inner("torch.arange", rows), slice(None), None), inner("torch.arange", columns)
            )
            return draft.add("<", draft.add(".abs", draft.add("+", far, 0)), draft.one_of(1, 2, 3))
        case "lengths":
            count = draft.leaf(rows, 1, kind="input", dtype="int64", high=columns + 1)
            return draft.add("<", inner("torch.arange", columns), count)
    return draft.leaf(rows, columns, kind=draft.one_of("input", "constant"), dtype="bool", high=2)


@family(4)
def masked(draft: Draft, x: Name) -> None:
    x = draft.with_rank(x, 2) if len(draft.shape(x)) < 2 else x
    seen = mask(draft, *draft.shape(x)[-2:])
    hidden = draft.add(draft.one_of("~", ".logical_not"), seen)
    match draft.one_of("infinite", "least", "where", "zeroed", "added", "chosen", "scalars"):
        case "infinite":
            draft.add(".softmax", draft.add(".masked_fill", draft.floating(x), hidden, Code("float('-inf')")), -1)
        case "least":
            x = draft.floating(x)
            least = Code(f"torch.finfo(torch.{draft.dtype_of(x)}).min")
            # In the same line, since sums of such numbers overflow.
            draft.add("F.softmax", inner(".masked_fill", x, hidden, least), -1, dtype=Code("torch.float32"))
        case "where":
            draft.add("torch.where", seen, x, draft.one_of(0, 0.0, 1, -1.5))
        case "zeroed":
            kept = draft.add("*", x, seen)
            draft.add("/", draft.add(".sum", kept, -1), draft.add(".clamp", draft.add(".sum", seen, -1), min=1))
        case "added":
            x = draft.floating(x)
            bias = draft.add("*", draft.add("-", 1.0, draft.add(".to", seen, Code(f"torch.{draft.dtype_of(x)}"))), -1e4)
            draft.add("F.softmax", draft.add("+", x, bias), -1)
        case "chosen":
            draft.add("torch.where", seen, draft.add("+", x, 1), draft.add(".sum", x, -1, True))
        case "scalars":
            either = draft.add("torch.where", seen, draft.one_of(1.0, 2, 0.5), draft.one_of(0.0, -1, 0.25))
            draft.add("*", x, either)


@family(3)
def grouped_attention(draft: Draft, x: Name) -> None:
    """Queries and keys of other lengths, fewer heads of keys, masks that broadcast."""
    x = draft.floating(x)
    width, groups, heads = draft.one_of(1, 4, 8), draft.one_of(1, 2), draft.one_of(1, 2, 3)
    batch, rows, columns = draft.one_of(1, 2), draft.one_of(1, 3, 5, 7), draft.one_of(1, 4, 7, 9)
    query = draft.matching(x, batch, heads * groups, rows, width, kind="input")
    key, value = (draft.matching(x, batch, heads, columns, width, kind="input") for _ in range(2))
    options = {}
    match draft.one_of("none", "causal", "choice", "weights"):
        case "causal":
            options["is_causal"] = True
        case "choice":
            options["attn_mask"] = mask(draft, rows, columns)
        case "weights":
            sizes = draft.one_of(
                (rows, columns), (1, columns), (batch, 1, rows, columns), (batch, heads * groups, 1, columns)
            )
            options["attn_mask"] = draft.matching(x, *sizes, kind="input")
    if groups > 1 and draft.maybe(0.4):
        key, value = (draft.add(".repeat_interleave", each, groups, 1) for each in (key, value))
    elif groups > 1:
        options["enable_gqa"] = True
    if draft.maybe(0.3):
        options["scale"] = draft.one_of(0.5, 1.0)
    draft.add("F.scaled_dot_product_attention", query, key, value, **options)


@family(3)
def cached(draft: Draft, x: Name) -> None:
    """A buffer or an input that keeps rows of earlier calls."""
    x = draft.with_rank(draft.floating(x), 3)
    batch, rows, width = draft.shape(x)
    length = rows + draft.one_of(0, 1, 4)
    kept = draft.matching(x, batch, length, width, kind=draft.one_of("buffer", "input"))
    match draft.one_of("index_copy", "slice", "narrow", "rolled", "scatter"):
        case "index_copy":
            draft.add(".index_copy_", kept, 1, draft.add("torch.arange", rows), x, results=0)
        case "slice":
            start = draft.one_of(0, length - rows)
            draft.add("[]=", kept, slice(None), slice(start, start + rows), x, results=0)
        case "narrow":
            draft.add(".copy_", draft.add(".narrow", kept, 1, length - rows, rows), x, results=0)
        case "rolled":
            joined = draft.add("[]", draft.add("torch.cat", [kept, x], 1), slice(None), slice(-length, None))
            draft.add(".copy_", kept, joined, results=0)
        case "scatter":
            place = draft.leaf(batch, 1, 1, kind="input", dtype="int64", high=length)
            first = draft.add("[]", x, slice(None), slice(0, 1))
            draft.add(".scatter_", kept, 1, draft.add(".expand", place, batch, 1, width), first, results=0)
    draft.add("@", x, draft.add(".transpose", kept, 1, 2))


@family(3)
def experts(draft: Draft, x: Name) -> None:
    """Rows choose their best, and what these compute is weighed."""
    x = draft.with_rank(draft.floating(x), 2)
    _, width = draft.shape(x)
    count, outputs = draft.one_of(2, 3, 4), draft.one_of(1, 3, 4)
    best = draft.one_of(1, 2)
    chances = draft.add("F.softmax", draft.add("@", x, draft.matching(x, width, count)), -1)
    weights, chosen = draft.add(".topk", chances, best, -1, results=2)
    weights = draft.add("/", weights, draft.add(".sum", weights, -1, True))
    matrices = draft.matching(x, count, width, outputs)
    match draft.one_of("gathered", "all", "hot", "scattered", "counts"):
        case "gathered":
            each = draft.add("torch.einsum", "rw,rkwo->rko", x, draft.add("[]", matrices, chosen))
            draft.add(".sum", draft.add("*", each, draft.add(".unsqueeze", weights, -1)), 1)
        case "all":
            whole = draft.add(".scatter", draft.add("torch.zeros_like", chances), 1, chosen, weights)
            draft.add("torch.einsum", "re,rw,ewo->ro", whole, x, matrices)
        case "hot":
            weighed = draft.add("*", draft.add("F.one_hot", chosen, count), draft.add(".unsqueeze", weights, -1))
            draft.add("@", draft.add(".sum", weighed, 1), draft.add(".sum", matrices, 1))
        case "scattered":
            total = draft.add("torch.zeros", count, width, dtype=Code(f"torch.{draft.dtype_of(x)}"))
            draft.add(".index_add", total, 0, draft.add("[]", chosen, slice(None), 0), x)
        case "counts":
            flat = draft.add(".flatten", chosen)
            nothing = draft.add("torch.zeros", count, dtype=Code("torch.int64"))
            draft.add(".scatter_add", nothing, 0, flat, draft.add("torch.ones_like", flat))


@family(4)
def places(draft: Draft, x: Name) -> None:
    """Several index tensors, places that were computed, and writing with a reduction."""
    shape = draft.shape(x)
    if not shape or 0 in shape:
        raise NotTakenError("nothing to choose from")
    dim = draft.dim(x) % len(shape)
    rows = draft.leaf(3, kind="input", dtype=draft.one_of("int64", "int64", "int32"), high=shape[0])
    match draft.one_of("two", "apart", "grid", "best", "order", "reduce", "put", "mask", "fill", "take", "search"):
        case "two":
            draft.add("[]", x, rows, draft.leaf(3, kind="input", dtype="int64", high=shape[1 % len(shape)]))
        case "apart":
            x = draft.with_rank(x, 3)
            last = draft.leaf(3, kind="input", dtype="int64", high=draft.shape(x)[-1])
            first = draft.leaf(3, kind="input", dtype="int64", high=draft.shape(x)[0])
            draft.add("[]", x, first, slice(None), last) if draft.maybe() else draft.add(
                "[]", x, first, None, ..., last
            )
        case "grid":
            x = draft.with_rank(x, 2)
            rows = draft.leaf(2, 1, kind="input", dtype="int64", high=draft.shape(x)[0])
            draft.add("[]", x, rows, draft.leaf(3, kind="input", dtype="int64", high=draft.shape(x)[1]))
        case "best":
            best = draft.add(draft.one_of(".argmax", ".argmin"), x, dim, True)
            draft.add("torch.gather", draft.earlier() if draft.maybe(0.2) else x, dim, best)
        case "order":
            order = draft.add(".argsort", draft.add(".argsort", x, dim=dim, stable=True), dim)
            draft.add("torch.take_along_dim", x, order, dim)
        case "reduce":
            x = draft.add(".clone", x)
            where = draft.leaf(*shape, kind="input", dtype="int64", high=shape[dim])
            kind = draft.one_of("sum", "prod", "mean", "amax", "amin")
            draft.add(
                ".scatter_reduce",
                x,
                dim,
                where,
                draft.matching(x, *shape, kind="input"),
                kind,
                include_self=draft.maybe(),
            )
        case "put":
            x = draft.with_rank(x, 2)
            pair = [draft.leaf(4, kind="input", dtype="int64", high=size) for size in draft.shape(x)]
            draft.add("torch.index_put", x, pair, draft.matching(x, *draft.one_of((4,), (1,), ()), kind="input"), True)
        case "mask":
            chosen = draft.add(">", x, 0)
            x = draft.add(".clone", x)
            draft.add("[]=", x, chosen, draft.one_of(0, 2), results=0)
            draft.add("*", x, 2)
        case "fill":
            draft.add(".index_fill", x, dim, draft.leaf(2, kind="input", dtype="int64", high=shape[dim]), 1)
        case "take":
            draft.add("torch.take", x, draft.leaf(2, 3, kind="input", dtype="int64", high=draft.value(x).numel()))
        case "search":
            x = draft.floating(x)
            edges = draft.add("torch.tensor", [-1.0, -0.5, 0.5, 1.0])
            draft.add("torch.bucketize", draft.add(".float", x), edges, right=draft.maybe())


@family(3)
def whole_numbers(draft: Draft, x: Name) -> None:
    """Integers among themselves and beside fractions: promotion, divisions, bits, wrapping."""
    shape = draft.shape(x)
    dtype = draft.one_of("int64", "int32", "uint8", "int8", "int16", "bool")
    leaf = "int64" if dtype == "int8" else dtype
    number = draft.leaf(*shape, kind="input", dtype=leaf, high=2 if dtype == "bool" else 120)
    if dtype == "int8":
        number = draft.add(".to", number, Code("torch.int8"))
    match draft.one_of("float", "zero-dim", "divide", "bits", "compare", "wrap", "mean", "cumulate", "cast", "mixed"):
        case "float":
            draft.add(draft.one_of("*", "+", "/"), number, draft.one_of(0.5, 2.0, -1.5))
        case "zero-dim":
            kind = Code(f"torch.{draft.one_of('float64', 'float32', 'int32', 'bfloat16')}")
            draft.add(
                draft.one_of("*", "+"),
                draft.one_of(x, number),
                draft.add("torch.tensor", draft.one_of(2, 3), dtype=kind),
            )
        case "divide":
            other = draft.one_of(3, -2, 7) if leaf not in ("uint8", "bool") else 3
            mode = draft.one_of("'floor'", "'trunc'")
            draft.add("torch.div", number, other, rounding_mode=Code(mode))
            draft.add(draft.one_of("%", "//", "torch.fmod") if leaf != "bool" else "+", number, other)
        case "bits":
            draft.add(draft.one_of("&", "|", "^"), number, draft.one_of(1, 3))
            draft.add(draft.one_of("<<", ">>"), draft.add("+", number, 0), draft.one_of(1, 2))
        case "compare":
            draft.add("*", x, draft.add(draft.one_of("<=", "!=", ">=", "=="), number, draft.one_of(2, 50, 1)))
        case "wrap":
            draft.add("*", draft.add("*", number, 100), draft.one_of(100, -100, number))
        case "mean":
            draft.add(".mean", number, dtype=Code(f"torch.{draft.dtype}"))
            draft.add(".sum", number, draft.one_of(0, -1) if shape else 0)
        case "cumulate":
            draft.add(draft.one_of(".cumsum", ".cumprod"), number, -1 if shape else 0)
        case "cast":
            draft.add(".to", draft.add("*", draft.floating(x), 20), Code("torch.int32"))
            draft.add(".to", number, Code(f"torch.{draft.one_of('bool', 'uint8', 'float32', 'bfloat16')}"))
        case "mixed":
            draft.add(draft.one_of("+", "-", "torch.maximum") if leaf != "bool" else "+", x, number)


@family(3)
def scanned(draft: Draft, x: Name) -> None:
    """Running sums and what state-space models make of them."""
    x = draft.floating(x)
    dim = draft.dim(x)
    match draft.one_of("segments", "decay", "logs", "reversed", "least", "difference", "linear"):
        case "segments":
            length = draft.shape(x)[-1]
            sums = draft.add(".cumsum", x, -1)
            apart = draft.add("-", draft.add(".unsqueeze", sums, -1), draft.add(".unsqueeze", sums, -2))
            past = draft.add(".tril", draft.add("torch.ones", length, length, dtype=Code("torch.bool")))
            kept = draft.add(".masked_fill", apart, draft.add("~", past), Code("-torch.inf"))
            draft.add("torch.exp", draft.add(".clamp", kept, max=1))
        case "decay":
            draft.add("torch.exp", draft.add(".cumsum", draft.add("F.logsigmoid", x), dim))
        case "logs":
            draft.add(".logcumsumexp", x, dim)
        case "reversed":
            draft.add(".flip", draft.add(".cumsum", draft.add(".flip", x, dim), dim), dim)
        case "least":
            draft.add(draft.one_of(".cummin", ".cummax"), x, dim, results=2)
        case "difference":
            draft.add("torch.diff", x, dim=dim, n=draft.one_of(1, 1, 2))
        case "linear":
            x = draft.with_rank(x, 3)
            _, length, width = draft.shape(x)
            if not 0 < length <= 6:
                raise NotTakenError("as many steps")
            state, decay = draft.add("[]", x, slice(None), 0), draft.add("torch.sigmoid", draft.matching(x, width))
            rows = [state]
            for number in range(1, length):
                state = draft.add("+", draft.add("*", state, decay), draft.add("[]", x, slice(None), number))
                rows.append(state)
            draft.add("torch.stack", rows, 1)


@family(3)
def measure(draft: Draft, x: Name) -> None:
    """Reductions that are rarer, and of several dimensions."""
    dim, kept = draft.dim(x), draft.maybe()
    dims = draft.one_of((dim,), (0, -1) if len(draft.shape(x)) > 1 else (0,), ())
    kind = draft.one_of("ends", "norm", "both", "count", "nans", "median", "typed", "all", "argmin", "ties", "standard")
    match kind:
        case "ends":
            draft.add(draft.one_of(".amax", ".amin"), x, dims, kept)
        case "norm":
            draft.add(
                "torch.linalg.vector_norm", draft.floating(x), draft.one_of(Code("torch.inf"), 0, 3, 0.5, 2), dim, kept
            )
        case "both":
            draft.add(
                draft.one_of("torch.var_mean", "torch.std_mean"),
                draft.floating(x),
                dim,
                correction=draft.one_of(0, 1),
                keepdim=kept,
                results=2,
            )
        case "count":
            draft.add("torch.count_nonzero", draft.add(".round", x) if draft.is_float(x) else x, dim)
        case "nans":
            draft.add(draft.one_of("torch.nansum", "torch.nanmean"), draft.floating(x), dim, kept)
        case "median":
            draft.add(".median", draft.floating(x), dim, kept, results=2)
        case "typed":
            draft.add(
                draft.one_of(".sum", ".mean", ".prod"),
                x,
                dim,
                kept,
                dtype=Code(f"torch.{draft.one_of('float32', 'float64')}"),
            )
        case "all":
            draft.add(draft.one_of(".all", ".any"), draft.add(">", x, -1), dim, kept)
        case "argmin":
            draft.add(draft.one_of(".argmin", ".argmax"), x, draft.one_of(dim, None), kept)
        case "ties":
            draft.add(draft.one_of(".amax", ".amin"), draft.add("F.relu", draft.floating(x)), dims, kept)
        case "standard":
            x = draft.floating(x)
            centered = draft.add("-", x, draft.add(".mean", x, dim, True))
            draft.add("/", centered, draft.add("+", draft.add(".std", x, dim, correction=0, keepdim=True), 0.1))


@family(2)
def einsum(draft: Draft, x: Name) -> None:
    x = draft.with_rank(draft.floating(x), 3)
    batch, rows, width = draft.shape(x)
    equation, kind = draft.one_of(*EINSUMS)
    if kind is None:
        draft.add("torch.einsum", equation, x)
        return
    other = draft.matching(x, batch, draft.one_of(1, 2, 5) if kind else rows, width, scale=0.5)
    third = (draft.matching(x, batch, rows, scale=0.5),) if equation.count(",") == 2 else ()
    draft.add("torch.einsum", equation, x, other, *third)


@family(2)
def sampled(draft: Draft, x: Name) -> None:
    """Images that are warped, scaled in other ways, taken apart and put together."""
    x = draft.with_rank(draft.floating(x), 4)
    batch, channels, rows, columns = draft.shape(x)
    match draft.one_of("grid", "area", "exact", "line", "volume", "fold", "unpool", "shuffle", "transposed"):
        case "grid":
            grid = draft.add("torch.tanh", draft.matching(x, batch, 3, 4, 2, kind="input"))
            draft.add(
                "F.grid_sample",
                x,
                grid,
                mode=draft.one_of("bilinear", "nearest"),
                padding_mode=draft.one_of("zeros", "border", "reflection"),
                align_corners=draft.maybe(),
            )
        case "area":
            draft.add("F.interpolate", x, size=(draft.one_of(1, 3), draft.one_of(2, 5)), mode="area")
        case "exact":
            draft.add("F.interpolate", x, scale_factor=draft.one_of(2, 0.5, 1.5), mode="nearest-exact")
        case "line":
            draft.add(
                "F.interpolate",
                draft.with_rank(x, 3),
                size=draft.one_of(1, 4, 7),
                mode="linear",
                align_corners=draft.maybe(),
            )
        case "volume":
            draft.add("F.interpolate", draft.with_rank(x, 5), scale_factor=2, mode="trilinear")
        case "fold":
            kernel, stride = draft.one_of(1, 2), draft.one_of(1, 2)
            columns_of = draft.add("F.unfold", x, kernel, stride=stride)
            draft.add("F.fold", columns_of, (rows, columns), kernel, stride=stride)
        case "unpool":
            found, where = draft.add("F.max_pool2d", x, 2, 2, return_indices=True, results=2)
            draft.add("F.max_unpool2d", found, where, 2, 2, output_size=(rows, columns))
        case "shuffle":
            draft.add("F.channel_shuffle", x, draft.one_of(1, max(channels, 1)))
        case "transposed":
            stride = draft.one_of(2, 3)
            weight = draft.matching(x, channels, draft.one_of(1, 2), 2, 3)
            draft.add(
                "F.conv_transpose2d",
                x,
                weight,
                stride=stride,
                padding=draft.one_of(0, 1),
                output_padding=draft.one_of(0, 1),
                dilation=draft.one_of(1, 2),
            )
