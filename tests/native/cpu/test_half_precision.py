"""float16 as whole numbers: every one of them is read, and floats are rounded to it, as torch does."""

import torch

from precast.native.targets.cpu.codegen.generate import generate
from tests.native.lowering.cases import open_cases
from tests.native.lowering.pipeline import lowered, make_entry

ALL = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(torch.float16)


def bits(halves):
    """What tells numbers, zeros' signs and infinities apart; all NaN are one."""
    return torch.where(halves.isnan(), torch.nan, halves).view(torch.int16)


def test_every_half_is_read_and_written_as_torch_does(tmp_path):
    model = open_cases({"widen": (lambda x: x.float(), [ALL]), "narrow": (lambda x: x.half(), [ALL.float()])}, tmp_path)
    (wide,) = model["widen"](ALL)
    torch.testing.assert_close(wide, ALL.float(), equal_nan=True, rtol=0, atol=0)
    assert torch.equal(wide.signbit()[~wide.isnan()], ALL.signbit()[~wide.isnan()])
    assert torch.equal(bits(model["narrow"](ALL.float())[0]), bits(ALL))


def test_floats_round_to_the_nearest_half_and_ties_to_even(tmp_path):
    finite = ALL.float()[ALL.isfinite()].sort().values
    middles = (finite[1:] + finite[:-1]) / 2
    ends = torch.tensor([65519.99, 65520.0, 1e30, -1e30, torch.inf, torch.nan, 2.0**-25, -(2.0**-25), 1e-40, -1e-40])
    numbers = torch.cat([middles, middles * (1 + 2e-7), middles * (1 - 2e-7), ends])
    model = open_cases({"narrow": (lambda x: x.half(), [numbers])}, tmp_path)
    assert torch.equal(bits(model["narrow"](numbers)[0]), bits(numbers.half()))


def test_values_between_operators_are_floats():
    sources = generate([make_entry(lowered(lambda x: (x * 2).exp() + x, torch.ones(64, dtype=torch.float16)))])
    (kernels,) = [unit.text for unit in sources.units if unit.name.startswith("kernels")]
    assert "precast::rounded_half(" in kernels
    assert "const precast::float16 " not in kernels.split("{", 2)[2]
