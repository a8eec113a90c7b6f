"""The native backend works ahead: on routines while a program is traced, on the forward during the backward."""

import pytest
import torch

import precast
from precast.errors import BuildError
from precast.native.targets.cpu.build import library
from precast.options import Options


@pytest.fixture
def begun(monkeypatch):
    """The units that were begun early, by name."""
    names = []
    start = library.build_early

    def note(sources, **others):
        names.append([unit.name for unit in sources.units])
        start(sources, **others)

    monkeypatch.setattr(library, "build_early", note)
    return names


def compiled_in(folder, model):
    return precast.compile(model, options=Options(cache_directory=folder))


def test_routines_are_begun_when_a_trace_begins_by_what_the_parameters_are(tmp_path, begun):
    compiled_in(tmp_path, torch.nn.Linear(2, 2))(torch.ones(1, 2))
    assert begun[0] == ["support.cpp", "matmul.cpp", "product.cpp"]


def test_what_a_lowered_program_calls_is_begun_before_it_is_fused(tmp_path, begun):
    compiled_in(tmp_path, torch.mm)(torch.ones(2, 2), torch.ones(2, 2))
    assert begun == [["support.cpp"], ["support.cpp", "matmul.cpp", "product.cpp"]]


def test_images_are_convolved(tmp_path, begun):
    compiled_in(tmp_path, torch.nn.Conv2d(1, 1, 1))(torch.ones(1, 1, 2, 2))
    files = ["convolution.cpp", "direct_convolution.cpp", "matmul.cpp", "own_convolutions.cpp", "product.cpp"]
    assert begun[0] == ["support.cpp", *files]


def test_nothing_is_begun_before_a_call_nor_for_one_that_is_found_compiled(tmp_path, begun):
    compiled_in(tmp_path, torch.nn.Linear(2, 2))(torch.ones(1, 2))
    count = len(begun)
    again = compiled_in(tmp_path, torch.nn.Linear(2, 2))
    again(torch.ones(1, 2))
    assert len(begun) == count


def test_nothing_is_begun_for_another_backend(begun):
    precast.compile(torch.nn.Linear(2, 2), backend="interpret")(torch.ones(1, 2))
    assert not begun


def test_no_compiler_is_told_by_the_call(tmp_path):
    options = Options(cache_directory=tmp_path, compiler="no-such-compiler")
    compiled = precast.compile(torch.sin, options=options)
    with pytest.raises(BuildError, match="no-such-compiler cannot be run"):
        compiled(torch.ones(2))


def test_the_forward_is_being_built_when_the_backward_is_lowered(tmp_path, monkeypatch):
    order = []
    begin = library.start_build

    def note(sources, **others):
        order.append("begun")
        finish = begin(sources, **others)
        return lambda: (order.append("waited for"), finish())[1]

    monkeypatch.setattr(library, "start_build", note)
    x = torch.ones(3, requires_grad=True)
    compiled_in(tmp_path, torch.sin)(x).sum().backward()
    assert order == ["begun", "begun", "waited for", "waited for"]
    torch.testing.assert_close(x.grad, torch.ones(3).cos())
