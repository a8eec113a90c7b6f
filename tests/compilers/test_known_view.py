"""Results that are views are taken in one step where everything lies as in the call before."""

import torch

import precast
from precast.compilers.known_view import KnownView


def known(source: torch.Tensor, view: torch.Tensor) -> KnownView:
    made = KnownView()
    made.remember(source, view)
    return made


def test_the_same_view_is_taken_of_what_lies_the_same():
    first, second = torch.zeros(4, 6), torch.arange(24.0).reshape(4, 6)
    view = known(first, first[1:].t()).of(second)
    assert view is not None
    assert torch.equal(view, second[1:].t())
    assert view.data_ptr() == second[1:].data_ptr()


def test_nothing_is_known_of_what_lies_otherwise():
    source = torch.zeros(4, 6)
    view = known(source, source.t())
    assert view.of(torch.zeros(6, 4).t()) is None
    assert view.of(torch.zeros(5, 6)[1:]) is None
    assert view.of(torch.zeros(4, 6, requires_grad=True)) is None


def test_copies_and_other_readings_of_the_memory_are_no_known_views():
    source = torch.zeros(4, 6)
    assert known(source, source.t().reshape(-1)).of(source) is None
    assert known(source, source.view(torch.int32)).of(source) is None
    complex_source = torch.zeros(3, dtype=torch.cfloat)
    assert known(complex_source, complex_source.conj()).of(complex_source) is None


def test_a_compiled_function_gives_eagers_view_in_every_call():
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x.exp()
        return y.transpose(0, 1).unsqueeze(1), y[1]

    compiled = precast.compile(function, dynamic=False)
    for number in range(3):
        x = torch.randn(3, 4, generator=torch.Generator().manual_seed(number))
        for ours, eager in zip(compiled(x), function(x), strict=True):
            torch.testing.assert_close(ours, eager)
            assert ours.stride() == eager.stride()
