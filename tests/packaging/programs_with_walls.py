"""Small modules of kinds that are hard to run without torch: control flow, sizes from data, complex numbers, …"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._higher_order_ops import associative_scan, scan, while_loop
from torch._higher_order_ops.map import map as map_rows
from torch.nn import functional

import precast


class Calling(torch.nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]):
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


@dataclass(frozen=True)
class Case:
    """What to package, and calls to compare with eager; the first is the example that it is packaged with."""

    make: Callable[[], torch.nn.Module]
    calls: tuple[tuple[Any, ...], ...]
    dynamic_shapes: Any = None
    tolerance: float = 1e-5


CASES: dict[str, Case] = {}


def case(*calls: tuple[Any, ...], dynamic_shapes: Any = None, tolerance: float = 1e-5) -> Callable[[Any], Any]:
    """Register a function, or a module's class, as a case under its name."""

    def register(given: Any) -> Any:
        make = given if isinstance(given, type) else lambda: Calling(given)
        CASES[given.__name__] = Case(make, calls, dynamic_shapes, tolerance)
        return given

    return register


def _numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _complex(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.view_as_complex(_numbers(*shape, 2, seed=seed))


def _spd(size: int, *batch: int) -> torch.Tensor:
    rows = _numbers(*batch, size, size)
    return rows @ rows.mT + size * torch.eye(size)


BATCH = precast.Dim("batch", min=1, max=64)
ROWS = {0: BATCH}


# Control flow.


@case((_numbers(3, 4),), (-_numbers(3, 4).abs(),))
def cond_on_data(x):
    return torch.cond(x.sum() > 0, lambda x: x.sin() * 2, lambda x: x.cos() - 1, (x,))


@case((_numbers(3, 4),), (_numbers(7, 4) - 9,), dynamic_shapes=(ROWS,))
def cond_with_dynamic_sizes(x):
    return torch.cond(x.mean() > 0, lambda x: (x.softmax(-1), x.sum()), lambda x: (x * 3, x.amax()), (x,))


@case((_numbers(4), torch.tensor(True)), (_numbers(4), torch.tensor(False)))
class CondOverWeights(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.left, self.right = torch.nn.Linear(4, 3), torch.nn.Linear(4, 3)

    def forward(self, x, flag):
        return torch.cond(flag, lambda x: self.left(x).relu(), lambda x: self.right(x).tanh(), (x,))


@case((_numbers(3, 4),), (-_numbers(3, 4).abs(),), (_numbers(3, 4) + 40,))
def cond_inside_of_cond(x):
    def positive(x):
        return torch.cond(x.sum() > 20, lambda x: x - 7, lambda x: x * 5, (x,))

    return torch.cond(x.sum() > 0, positive, lambda x: x.exp(), (x,)) + 1


@case((torch.tensor(3), _numbers(4)), (torch.tensor(0), _numbers(4)), (torch.tensor(11), _numbers(4)))
def while_loop_counts(n, x):
    return while_loop(lambda i, x: i < n, lambda i, x: (i + 1, x * 1.5 - 0.25), (torch.tensor(0), x))


@case((_numbers(2, 5).abs(),), (_numbers(6, 5).abs() * 100,), dynamic_shapes=(ROWS,))
def while_loop_until_small(x):
    def halve(x, steps):
        return x / 2, steps + 1

    return while_loop(lambda x, steps: x.sum() > 1, halve, (x, torch.tensor(0)))


@case((_numbers(5, 3),))
class ScanOfACell(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = torch.nn.GRUCell(3, 6)

    def forward(self, x):
        def step(h, row):
            h = self.cell(row[None], h)
            return h, h[0] * 2

        return scan(step, torch.zeros(1, 6), x, dim=0)


@case((_numbers(5, 3),), (_numbers(11, 3),), (_numbers(1, 3),), dynamic_shapes=({0: precast.Dim("time", min=1)},))
def scan_over_dynamic_time(x):
    def step(carry, row):
        total, count = carry
        return (total * 0.5 + row, count + 1), {"total": total.cumsum(0), "count": count * 2}

    return scan(step, (torch.zeros(3), torch.tensor(0)), x, dim=0)


@case((_numbers(4, 3), _numbers(3)), (_numbers(9, 3), _numbers(3)), dynamic_shapes=(ROWS, None))
def map_over_rows(x, y):
    return map_rows(lambda row, y: (row * y).softmax(0), x, y)


@case((_numbers(6, 3),))
def associative_scan_of_products(x):
    return associative_scan(lambda a, b: a * b + 0.5, x, dim=0, combine_mode="generic")


# Images and attention of dynamic sizes.


SIDES = {2: precast.Dim("height", max=64), 3: precast.Dim("width", max=64)}


@case((_numbers(2, 3, 4, 6), _numbers(1, 1, 8, 9)), (_numbers(2, 3, 5, 4), _numbers(1, 1, 7, 8)),
      dynamic_shapes=(SIDES, {2: precast.Dim("to_height", max=64), 3: precast.Dim("to_width", max=64)}))  # fmt: skip
def resized_to_dynamic_sizes(x, y):
    modes = ("nearest", "nearest-exact", "bilinear", "bicubic")
    resize = torch.nn.functional.interpolate
    return [resize(x, size=y.shape[-2:], mode=mode) for mode in modes] + [
        resize(x, scale_factor=0.5),
        resize(x, None, 3),
    ]


HEADS = {0: precast.Dim.AUTO, 2: precast.Dim.AUTO}


@case((_numbers(2, 4, 5, 4), _numbers(2, 2, 5, 4)), (_numbers(1, 4, 9, 4), _numbers(1, 2, 9, 4)),
      dynamic_shapes=(HEADS, HEADS))  # fmt: skip
def attention_with_shared_heads(query, key):
    return torch.nn.functional.scaled_dot_product_attention(query, key, key + 1, is_causal=True, enable_gqa=True)


# Sizes that depend on data.


@case((_numbers(4, 5),), (-_numbers(4, 5).abs(),), (_numbers(4, 5).abs(),))
def nonzero_places(x):
    return (x > 0).nonzero()


@case((_numbers(6, 3),), (_numbers(6, 3) - 9,), (_numbers(6, 3) + 9,))
def rows_by_mask(x):
    kept = x[x[:, 0] > 0]
    return kept * 2, kept.sum(0)


@case((_numbers(6, 3),), (_numbers(17, 3),), dynamic_shapes=(ROWS,))
def masked_select_with_dynamic_sizes(x):
    return torch.masked_select(x, x > 0.3).exp()


@case((torch.tensor([3, 1, 3, 2, 1]),), (torch.tensor([7, 7, 7, 7, 7]),))
def unique_values(x):
    return torch.unique(x)


@case((torch.tensor([3, 1, 3, 2, 1]),), (torch.tensor([7, 7, 7, 7, 7]),))
def unique_with_counts(x):
    return torch.unique(x, return_inverse=True, return_counts=True)


@case((torch.tensor([3, 3, 1, 1, 1, 3]),))
def unique_consecutive_values(x):
    return torch.unique_consecutive(x, return_counts=True)


@case((torch.tensor([3, 3, 1, 1, 0]),), (torch.tensor([0, 0]),), dynamic_shapes=(ROWS,))
def labels_without_repetitions(x):
    labels = torch.unique_consecutive(x)
    return labels[labels != 0]


# Thresholds that are rounded otherwise in double precision.
@case((torch.tensor([0.1, 0.2, 0.3, -1.0]),))
def values_above_a_threshold(x):
    return x[x > 0.1] * 2, x.masked_select(x == 0.2)


@case((_numbers(8, 2), torch.tensor(3)), (_numbers(8, 2), torch.tensor(8)), (_numbers(8, 2), torch.tensor(0)))
def slice_by_item(x, n):
    size = n.item()
    torch._check(size >= 0)
    torch._check(size <= x.shape[0])
    return x[:size] * 2


@case((torch.tensor(4),), (torch.tensor(1),))
def arange_of_item(n):
    size = n.item()
    torch._check(size >= 0)
    torch._check(size <= 100)
    return torch.arange(size) * 2 + size


@case((torch.tensor([2, 0, 3]), _numbers(3, 2)), (torch.tensor([1, 1, 1]), _numbers(3, 2)))
def repeat_interleave_by_tensor(counts, x):
    repeated = torch.repeat_interleave(x, counts, dim=0)
    torch._check(repeated.shape[0] <= 12)
    return repeated * 2


@case((torch.tensor([2, 0, 3]), _numbers(3, 2)))
def repeat_interleave_to_a_size(counts, x):
    return torch.repeat_interleave(x, counts, dim=0, output_size=5) * 2


@case((_numbers(6, 3), torch.tensor(4)), (_numbers(17, 3), torch.tensor(17)), dynamic_shapes=(ROWS, None))
def slice_below_a_dynamic_size(x, n):
    size = n.item()
    torch._check(size >= 1)
    torch._check(size <= x.shape[0])
    return x[:size].softmax(0), x[: size - 1].sum(0)


@case((_numbers(4, 6, 3),), (_numbers(4, 6, 3) - 9,))
def several_masks(x):
    kept = x[x[..., 0] > 0]
    again = kept[kept[:, 1] > 0]
    return again.sum(0), again @ again.mT


@case((_numbers(6, 3),), (_numbers(6, 3) - 9,), (_numbers(6, 3) + 9,))
def one_mask_computed_twice(x):
    x = x.clone()
    x[~(x[:, 0] > 0)] += x[~(x[:, 0] > 0)].exp()
    return x, x[x[:, 1] > 0] * (x + 1)[x[:, 1] > 0]


@case((_numbers(6, 3), torch.tensor(2)), (_numbers(6, 3) - 9, torch.tensor(7)))
def counts_returned(x, n):
    kept = x[x[:, 0] > 0]
    return kept, kept.shape[0] * 2 + 1, n.item()


@case((_numbers(9, 5),), (_numbers(9, 5) - 3,))
class KeepTheBest(torch.nn.Module):
    """What detection heads do: a threshold, then the boxes and scores that passed it, sorted."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.score = torch.nn.Linear(5, 1)

    def forward(self, boxes):
        scores = self.score(boxes).sigmoid()[:, 0]
        kept = (scores > 0.5).nonzero()[:, 0]
        order = scores[kept].argsort(descending=True)
        return boxes[kept][order], scores[kept][order]


# Recurrent layers over dynamic time.


@case((_numbers(2, 5, 3),), (_numbers(2, 9, 3),), (_numbers(2, 2, 3),),
      dynamic_shapes=({1: precast.Dim("time", min=1)},))  # fmt: skip
class LstmOverTime(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True)

    def forward(self, x):
        return self.layer(x)


@case((_numbers(5, 2, 3),), (_numbers(9, 2, 3),), dynamic_shapes=({0: precast.Dim("time", min=1)},))
class GruOverTime(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.other = torch.nn.GRU(3, 4), torch.nn.RNN(4, 3)

    def forward(self, x):
        y, h = self.layer(x)
        return self.other(y)[0], h


# Complex numbers.


@case((_complex(3, 4), _complex(4, seed=1)), (_complex(5, 4), _complex(4, seed=1)), dynamic_shapes=(ROWS, None))
def complex_arithmetic(z, w):
    return z * w + 2j, (z / w).abs(), (z - 1).conj() * 0.5, -z.real, z.conj().imag, z.angle()


@case((_numbers(2, 5, 3, 8), _complex(5, 4)), (_numbers(2, 5, 3, 8, seed=2), _complex(5, 4, seed=3)))
def rotary_embedding(x, rotation):
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotation[:, None]).flatten(3)


@case((_complex(3, 4), _complex(4, 2, seed=1), _complex(2, 3, 4), _complex(2, 4, 3, seed=1)))
def complex_products(a, b, c, d):
    return a @ b, torch.bmm(c, d), torch.einsum("bij,bjk->bik", c, d.conj()), a.mH @ a, a.T.contiguous()


@case((_complex(3, 4),))
def complex_functions(z):
    powers = z**2, z**3, z.exp(), z.log(), torch.polar(z.abs(), z.angle()), torch.complex(z.imag, z.real)
    return powers, z.sum(), z.mean(0), z.to(torch.complex128), z.sgn(), z.reshape(2, 6)[1:], z.flip(0), 1 / z


@case((_complex(3, 4), _complex(2)))
def complex_tensors_passed_on(z, w):
    return z, z.conj(), z.T, w.resolve_conj(), {"twice": [w, w]}


@case((_complex(4, 6).T,), (_complex(4, 6, seed=1).T.conj(),))
def complex_tensors_of_other_layouts(z):
    return z * 2, z[:, 1:], z.reshape(-1) + 1


class Filter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(_complex(4, 3))
        self.register_buffer("last", _complex(3))

    def forward(self, z):
        before = self.last.clone()
        self.last.mul_(0.5).add_(z.mean(0) @ self.weight)
        return z @ self.weight + before


@case((_complex(5, 4),))
class ComplexWeights(Filter):
    pass


# Fourier transforms.


@case((_numbers(3, 10),), (_numbers(7, 10),), dynamic_shapes=(ROWS,))
def transforms_of_real(x):
    back = torch.fft.irfft(torch.fft.rfft(x, norm="ortho"), 9)
    return torch.fft.rfft(x), back, torch.fft.fft(x, 7), torch.fft.hfft(x)


@case((_numbers(2, 6, 15),), (_numbers(2, 6, 22),), dynamic_shapes=({2: precast.Dim("time", min=4, max=64)},))
def transforms_of_dynamic_length(x):
    return torch.fft.fft(x), torch.fft.rfft(x, norm="forward").abs(), torch.fft.irfft(torch.fft.rfft(x), x.shape[2])


@case((_complex(3, 8, 6),))
def transforms_of_many_dims(z):
    shifted = torch.fft.fftshift(torch.fft.fft2(z, norm="ortho"))
    return shifted, torch.fft.ifftn(z), torch.fft.fft(z, dim=0), torch.fft.irfft2(z, (5, 9)), torch.fft.rfftn(z.real)


@case((_numbers(2, 6, 8).double(),))
def transforms_in_double(x):
    return torch.fft.fft2(x), torch.fft.irfft(torch.fft.rfft(x.transpose(1, 2)))


@case((_numbers(2, 200),), (_numbers(2, 300),), dynamic_shapes=({1: precast.Dim("samples", min=64, max=4096)},))
def spectrogram(x):
    spectrum = torch.stft(x, 32, 8, window=torch.hann_window(32), return_complex=True)
    return spectrum, spectrum.abs() ** 2


@case((_numbers(2, 200),))
def there_and_back(x):
    window = torch.hann_window(24)
    spectrum = torch.stft(x, 32, 8, 24, window=window, return_complex=True)
    return torch.istft(spectrum * 0.5, 32, 8, 24, window=window, length=200), torch.istft(spectrum, 32, 8, 24, window)


@case((_numbers(2, 4, 16),))
class SpectralConvolution(torch.nn.Module):
    """A layer of a Fourier neural operator."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(_complex(4, 3, 5))

    def forward(self, x):
        spectrum = torch.fft.rfft(x)
        kept = torch.einsum("bix,iox->box", spectrum[..., :5], self.weight)
        result = torch.zeros(x.shape[0], 3, spectrum.shape[-1], dtype=torch.complex64)
        result[..., :5] = kept
        return torch.fft.irfft(result, n=x.shape[-1])


_WIDE = ({1: precast.Dim("n", min=1, max=50)}, None)


@case((_numbers(2, 9), torch.tensor([2, 3, 4])), (_numbers(2, 8), torch.tensor([0, 8, 0])), dynamic_shapes=_WIDE)
def split_by_data(x, lengths):
    first, second, third = x.split(lengths.tolist(), 1)
    together = torch.cat([third, second, first], 1) + x
    return first.sum(1), second.cumsum(1), third * 2, torch.cat([third, first], 1), together


@case((_numbers(6, 4),), (_numbers(6, 4, seed=1),))
class RowsOfExperts(torch.nn.Module):
    """A mixture of experts that sorts rows by expert, and splits them by how many each one has."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(_numbers(3, 5, 4))

    def forward(self, x):
        chosen = x[:, :3].topk(2, 1).indices
        counts = torch.zeros(6, 3).scatter(1, chosen, 1).long().sum(0).tolist()
        order = chosen.flatten().sort(0).indices
        parts = x[order // 2].split(counts, 0)
        rows = torch.cat([functional.linear(part, self.weight[i]) for i, part in enumerate(parts)])
        return torch.zeros(12, 5).index_add(0, order, rows)


@case((_numbers(3, 4), torch.tensor(2)), (_numbers(3, 4), torch.tensor(0)))
def padding_by_data(x, number):
    rows = number.item()
    torch._check(rows >= 0)
    torch._check(rows <= 8)
    return functional.pad(x, (1, rows), value=-1.0)


@case((_numbers(2, 3).abs(),), (-_numbers(2, 3).abs(),))
def ways_chosen_by_data(x):
    x = x * 2 if (x > 0).any() else x + 1
    return x.sum(0) if x.max() > 1 else x.mean(0)


@case((_numbers(1, 4, 6),), (_numbers(1, 3, 1),), dynamic_shapes=({1: precast.Dim("h", max=9), 2: precast.Dim("w")},))
def coordinates(x):
    rows, columns = torch.linspace(-1, 1, x.shape[1]), torch.linspace(0.5, -3, x.shape[2], dtype=torch.float64)
    return x * rows[:, None], columns
