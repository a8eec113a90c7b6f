"""Steps that compute element by element, and reductions."""

from __future__ import annotations

from tests.fuzz.drafts import FLOATS, Draft, NotTakenError, family
from tests.fuzz.programs import Code, Name

ACTIVATIONS = (
    "F.relu", "F.silu", "F.gelu", "torch.sigmoid", "torch.tanh", "F.softplus", "F.elu", "F.leaky_relu", "F.hardswish",
    "F.hardsigmoid", "F.mish", "F.selu", "F.logsigmoid", "F.relu6", "F.softsign", "F.hardtanh", "F.celu",
)  # fmt: skip
FUNCTIONS = (
    "torch.sin", "torch.cos", "torch.abs", "torch.neg", "torch.square", "torch.atan", "torch.erf", "torch.sign",
    "torch.floor", "torch.round", "torch.expm1", "torch.sinh", "torch.isnan", "torch.trunc", "torch.frac",
)  # fmt: skip


@family(10)
def activation(draft: Draft, x: Name) -> None:
    draft.add(draft.one_of(*ACTIVATIONS), draft.floating(x))


@family(4)
def function(draft: Draft, x: Name) -> None:
    match draft.one_of("plain", "plain", "exponent", "logarithm", "root", "power", "clamp", "approximate"):
        case "plain":
            draft.add(draft.one_of(*FUNCTIONS), x)
        case "exponent":
            draft.add("torch.exp", draft.add(".clamp", draft.floating(x), max=3))
        case "logarithm":
            draft.add("torch.log", draft.add("+", draft.add(".abs", x), 1))
        case "root":
            draft.add(draft.one_of("torch.sqrt", "torch.rsqrt"), draft.add("+", draft.add(".square", x), 1))
        case "power":
            draft.add("torch.pow", x, draft.one_of(2, 3, 0))
        case "clamp":
            draft.add(".clamp", x, draft.one_of(None, -1, 0), draft.one_of(1, 2))
        case "approximate":
            draft.add("F.gelu", draft.floating(x), approximate="tanh")


@family(7)
def scalar(draft: Draft, x: Name) -> None:
    number = draft.one_of(2, 3, 0.5, -1.5, 1) if draft.is_float(x) else draft.one_of(2, 3, 5, -3)
    operator = draft.one_of("+", "-", "*", "*", "/")
    draft.add(operator, *draft.one_of((x, number), (x, number), (number, x) if operator != "/" else (x, 3)))


@family(9)
def residual(draft: Draft, x: Name) -> None:
    other = draft.earlier(last=6)
    match draft.one_of("+", "+", "*", "-", "divide", "maximum", "where", "lerp", "mean", "%", "//"):
        case "divide":
            draft.add("/", x, draft.add("+", draft.add(".abs", other), 1))
        case "maximum":
            draft.add(draft.one_of("torch.maximum", "torch.minimum"), x, other)
        case "where":
            draft.add("torch.where", draft.add(">", x, 0), x, other)
        case "lerp":
            draft.add("torch.lerp", x, other, 0.3)
        case "mean":
            draft.add(draft.one_of("+", "-"), x, draft.add(".mean", draft.floating(x), draft.dim(x), True))
        case "%" | "//" as operator:
            draft.add(operator, x, draft.one_of(2, 3, -2))
        case operator:
            draft.add(operator, x, other)


@family(4)
def broadcast(draft: Draft, x: Name) -> None:
    """A new tensor of part of the value's dimensions: a bias, a scale, a mask."""
    shape = draft.shape(x)
    kept = [size if draft.maybe() else 1 for size in shape][draft.choose.randrange(len(shape)) if shape else 0 :]
    kind = draft.one_of("parameter", "parameter", "buffer", "constant", "input")
    dtype = draft.dtype_of(x) if draft.maybe(0.8) else draft.one_of("int64", "bool", "float32", "float64")
    draft.add(draft.one_of("+", "*", "-"), x, draft.leaf(*kept, kind=kind, dtype=dtype, scale=1.0))


@family(4)
def reduction(draft: Draft, x: Name) -> None:
    dim, kept = draft.dim(x), draft.maybe()
    if draft.maybe(0.25):
        draft.add(draft.one_of(".sum", ".mean", ".amax"), draft.floating(x))
        return
    kind = draft.one_of(
        "sum", "mean", "amax", "amin", "logsumexp", "var", "std", "norm", "prod", "any", "argmax", "max", "both"
    )
    match kind:
        case "var" | "std":
            draft.add(f".{kind}", draft.floating(x), dim, correction=draft.one_of(0, 1), keepdim=kept)
        case "norm":
            draft.add("torch.linalg.vector_norm", draft.floating(x), draft.one_of(1, 2), dim, kept)
        case "max":
            draft.add(".max", x, dim, kept, results=2)
        case "both":
            draft.add(".sum", x, (0, -1) if len(draft.shape(x)) > 1 else 0, kept)
        case "mean" | "logsumexp":
            draft.add(f".{kind}", draft.floating(x), dim, kept)
        case _:
            draft.add(f".{kind}", x, dim, kept)


@family(5)
def along(draft: Draft, x: Name) -> None:
    """What depends on a whole row and is as long."""
    dim = draft.dim(x)
    kind = draft.one_of(
        "softmax", "softmax", "log_softmax", "cumsum", "cumsum", "cumprod", "sort", "topk", "cummax", "flip", "glu"
    )
    match kind:
        case "softmax" | "log_softmax":
            draft.add(f"F.{kind}", draft.floating(x), dim)
        case "sort" | "cummax":
            draft.add(f".{kind}", x, dim, results=2)
        case "topk":
            draft.add(".topk", x, min(2, draft.shape(x)[dim]), dim, results=2)
        case "glu":
            draft.add("F.glu", draft.floating(x), dim)
        case "cumprod":
            draft.add(".cumprod", draft.add("torch.tanh", draft.floating(x)), dim)
        case _:
            draft.add(f".{kind}", x, dim)


@family(3)
def cast(draft: Draft, x: Name) -> None:
    if not draft.is_float(x) or draft.maybe(0.2):
        draft.add(
            ".to",
            draft.add(".round", x) if draft.is_float(x) else x,
            Code(f"torch.{draft.one_of('int64', 'int32', 'float32')}"),
        )
    else:
        draft.add(".to", x, Code(f"torch.{draft.one_of(*FLOATS)}"))


@family(2)
def constant(draft: Draft, x: Name) -> None:
    shape = draft.shape(x)
    if not shape:
        raise NotTakenError("a number has no rows")
    size, dtype = shape[-1], Code(f"torch.{draft.dtype_of(x)}")
    match draft.one_of("arange", "tensor", "triangle", "ones", "linspace", "eye"):
        case "arange":
            draft.add("+", x, draft.add("torch.arange", size))
        case "tensor":
            draft.add("*", x, draft.add("torch.tensor", draft.one_of(2.0, [1.5], [[1], [-1]]) if len(shape) > 1 else 3))
        case "triangle":
            draft.add("torch.tril" if draft.maybe() else "torch.triu", draft.with_rank(x, 2), draft.one_of(0, 1, -1))
        case "ones":
            draft.add("-", x, draft.add("torch.ones", size, dtype=dtype))
        case "linspace":
            draft.add("*", x, draft.add("torch.linspace", 0, 1, size))
        case "eye":
            draft.add("@", draft.with_rank(x, 2), draft.add("torch.eye", size, dtype=dtype))


@family(1)
def dropout(draft: Draft, x: Name) -> None:
    draft.add("F.dropout", draft.floating(x), 0.5, False)
