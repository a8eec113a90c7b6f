"""The honest files that attacks begin from: what programs and packages may hold, each in a small one."""

import io
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import precast

STORED = Path(__file__).parents[1] / "export" / "stored" / "version_1_0.pt2"
SANITIZED = "g++ -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


class Base(NamedTuple):
    """A file, whether it is a package, and what its entries are called with."""

    data: bytes
    is_package: bool
    calls: tuple[Arguments, ...]


class Mixed(torch.nn.Module):
    """State that is updated, an index, a branch, a dict, a keyword, sizes that vary and sizes that are returned."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.table = torch.nn.Embedding(7, 3)
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("spread", torch.ones(1).expand(3))

    def forward(self, inputs: dict[str, Any], *, shift: float = 1.5) -> dict[str, Any]:
        self.count += 1
        x = inputs["x"] * self.spread + self.table(inputs["rows"])
        pooled = F.max_pool1d(x, 3)
        return {"y": self.layer(x).relu() + shift + pooled, "size": x.shape[0] * 2, "count": self.count}


class Shaped(torch.nn.Module):
    """Sizes without a bound that are padded, pooled, cut, joined and sorted, and indices that are data."""

    def __init__(self) -> None:
        super().__init__()
        self.filter = torch.nn.Conv1d(2, 3, 3, padding=1)

    def forward(self, x: Any, index: Any) -> Any:
        wide = F.pad(self.filter(x), (1, 2))
        pooled = F.avg_pool1d(wide, 2, ceil_mode=True)[..., : x.shape[2] // 2]
        taken = wide.gather(2, index.expand(x.shape[0], 3, -1))
        places = torch.arange(x.shape[2])
        joined = torch.cat([x, x.flip(2)], dim=2).to(torch.bfloat16)
        return pooled, taken.sort(2).values, places.view(-1, 1), joined[:, :, ::2], F.one_hot(index, 9).sum(0)


class Looped(torch.nn.Module):
    """Branches and loops as operators, what a value decides, and constants that are complex or not a number."""

    def forward(self, x: Any, n: Any) -> Any:
        chosen = torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))
        _, counted = torch.while_loop(lambda i, y: i < 3, lambda i, y: (i + 1, y * 2), (n, x))
        rotated = chosen * torch.tensor([1 + 2j, complex("nan")])
        kept = torch.where(counted > 2, counted, float("nan"))
        return rotated.abs(), kept.nan_to_num(), torch.stack([chosen, counted]).as_strided((2, 2), (1, 2), 1)


class Trained(torch.nn.Module):
    """Statistics and drawn numbers, which a step keeps as state."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.2)

    def forward(self, x: Any) -> Any:
        return self.drop(self.norm(self.layer(x)).relu())


def _mixed() -> Arguments:
    return ({"x": torch.ones(4, 3), "rows": torch.arange(4) % 7},), {"shift": 1.5}


def _mixed_shapes() -> Any:
    rows = precast.Dim("rows", min=2, max=9)
    return {"inputs": {"x": {0: rows}, "rows": {0: rows}}, "shift": None}


def _shaped() -> Arguments:
    return (torch.ones(2, 2, 8), torch.tensor([0, 7, 3])), {}


def _shaped_shapes() -> Any:
    return ({0: precast.Dim("batch"), 2: precast.Dim("length", min=2)}, {0: precast.Dim("taken")})


def _looped() -> Arguments:
    return (torch.ones(3, 2), torch.tensor(0)), {}


def _claiming(arguments: Arguments) -> Arguments:
    """The same arguments, each tensor of which claims to have very many rows."""

    def enlarged(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.ndim == 0:
            return leaf
        return leaf[:1].expand(2**40, *leaf.shape[1:])

    made: Arguments = pytree.tree_map(enlarged, arguments)
    return made


def _program(module: torch.nn.Module, arguments: Arguments, shapes: Any = None) -> Base:
    file = io.BytesIO()
    precast.save(precast.export(module, *arguments, dynamic_shapes=shapes), file)
    return Base(file.getvalue(), False, (arguments,))


def _package(module: Any, calls: Sequence[Arguments], shapes: Any = None, *, options: dict[str, str]) -> Base:
    arguments = calls[0] if isinstance(module, torch.nn.Module) else ((), None)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.precast"
        precast.package(module, *arguments, path=path, dynamic_shapes=shapes, options=options)
        return Base(path.read_bytes(), True, tuple(each for call in calls for each in (call, _claiming(call))))


def _step(*, options: dict[str, str]) -> Base:
    """A saved step: an entry that writes its state, and one that reads it."""
    model, batch = Trained(), torch.ones(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    loss_fn = lambda model, x: model(x).square().mean()  # noqa: E731
    step = precast.train_step(model, loss_fn, optimizer, batch, skip_nonfinite=True, options=options)
    with tempfile.TemporaryDirectory() as folder:
        data = step.save(Path(folder) / "step.precast").read_bytes()
    return Base(data, True, (((batch,), {}), _claiming(((batch,), {}))))


@cache
def bases(compiler: str | None = None) -> tuple[Base, ...]:
    """Programs and packages; the code in packages is built by that compiler."""
    torch.manual_seed(0)
    options = {} if compiler is None else {"compiler": compiler}
    mixed, shaped = Mixed(), Shaped()
    entries = {
        "forward": precast.export(shaped, *_shaped(), dynamic_shapes=_shaped_shapes()),
        "short": precast.export(shaped, *_shaped()),
    }
    return (
        Base(STORED.read_bytes(), False, ()),
        _program(mixed, _mixed(), _mixed_shapes()),
        _program(Looped(), _looped()),
        _package(mixed, [_mixed()], _mixed_shapes(), options=options),
        _package(entries, [_shaped()], options=options),
        _step(options=options),
    )
