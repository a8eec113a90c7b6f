"""Texts of tensors show values: a program that makes one runs in Python, or cannot be captured."""

import io
import logging
import warnings
from collections.abc import Callable

import pytest
import torch

import precast
from precast.errors import DataDependentError

KEPT = torch.tensor([0.5, 0.25])

TEXTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "str": lambda x: x * len(str(x)),
    "repr of a result": lambda x: x * len(repr(x.exp())),
    "format": lambda x: x * len(f"{x}"),
    "format of a number": lambda x: x * float(f"{x.sum():.1f}"),
    "a list of tensors": lambda x: x * len("{}".format([x])),  # noqa: UP032
    "a tensor that is no argument": lambda x: x * len("%s" % (KEPT,)),  # noqa: UP031
}


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_a_tensor_is_eagers(name: str) -> None:
    function = TEXTS[name]
    compiled = precast.compile(function, backend="nop")
    with pytest.warns(precast.GraphBreakWarning, match="converts a tensor to a string"):
        compiled(torch.tensor([1.0, 2.0]))
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([-0.125, 1e9])):
        torch.testing.assert_close(compiled(x), function(x))


def test_print_shows_what_eager_shows(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        print("x is", x, sep=" ")
        return x + 1

    with pytest.warns(precast.GraphBreakWarning):
        precast.compile(program, backend="nop")(torch.ones(2))
    assert capsys.readouterr().out == "x is tensor([1., 1.])\n"


@pytest.mark.parametrize("dynamic", [False, True])
def test_sizes_and_types_are_printed_at_every_call(capsys: pytest.CaptureFixture[str], dynamic: bool) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        print(tuple(x.shape), x.dtype, sep=": ")
        print(f"{x.shape[0]} rows of", x.shape, x.shape[0] * 2)
        return x + 1

    compiled = precast.compile(program, backend="nop", fullgraph=True, dynamic=dynamic)
    for rows in (2, 2, 5):
        program(torch.ones(rows))
        expected = capsys.readouterr().out
        compiled(torch.ones(rows))
        assert capsys.readouterr().out == expected


def test_a_hook_that_prints_sizes_is_part_of_the_graph(capsys: pytest.CaptureFixture[str]) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2))
    module[0].register_forward_hook(lambda module, args, output: print("hook", output.shape))
    compiled = precast.compile(module, backend="nop", fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(3, 2))
    assert capsys.readouterr().out == "hook torch.Size([3, 2])\n" * 2


def test_a_log_does_not_end_a_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    # Other tests may have turned logging off.
    monkeypatch.setattr(logging.root.manager, "disable", 0)
    shown = io.StringIO()
    log = logging.Logger("program")
    log.addHandler(logging.StreamHandler(shown))

    def program(x: torch.Tensor) -> torch.Tensor:
        log.warning("got %s", x)
        return x + 1

    assert torch.equal(precast.compile(program, backend="nop", fullgraph=True)(torch.ones(2)), torch.full((2,), 2.0))
    assert "got" in shown.getvalue()


class Telling(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        print(x)
        warnings.warn(f"{x} came, {x.shape[0]} of {x.sum().item()}", stacklevel=1)
        return x + 1


class Counting(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * len(str(x))


@pytest.mark.filterwarnings("ignore")
def test_export_drops_what_is_only_told(capsys: pytest.CaptureFixture[str]) -> None:
    module = precast.export(Telling(), (torch.ones(3),), dynamic_shapes={"x": {0: precast.Dim("n")}}).module()
    assert "FakeTensor" in capsys.readouterr().out
    assert module(torch.ones(2)).tolist() == [2, 2]
    assert capsys.readouterr().out == ""


def test_export_names_the_line_and_the_way_out() -> None:
    with pytest.raises(
        DataDependentError, match=r"converts a tensor to a string(.|\n)*len\(str\(x\)\)(.|\n)*fix: Print the result"
    ):
        # Only statements of the program itself are looked at, not the one that exports it.
        print(precast.export(Counting(), (torch.ones(2),)))


class Formatting(torch.nn.Module):
    def forward(self, x):
        total = x.sum().item()
        print(f"{total:.2f} in {x.shape[0]:03d}")
        return {f"rows_{x.shape[1]:02d}": x * total}


def test_formatted_numbers_are_told_when_exporting(capsys):
    program = precast.export(Formatting(), (torch.ones(2, 3),), dynamic_shapes={"x": {0: precast.Dim("n")}})
    assert " in " in capsys.readouterr().out
    torch.testing.assert_close(program.module()(torch.ones(4, 3)), {"rows_03": torch.full((4, 3), 12.0)})


def test_a_size_that_is_formatted_into_the_result_is_what_it_is_in_the_example():
    shapes = {"x": {1: precast.Dim("n")}}
    with pytest.raises(precast.errors.SymbolicShapeError, match=r"must be 3|constant 3|n = 3"):
        precast.export(Formatting(), (torch.ones(2, 3),), dynamic_shapes=shapes)


def test_a_number_from_data_cannot_be_formatted_into_a_result():
    class Naming(torch.nn.Module):
        def forward(self, x):
            return {f"{x.sum().item():.1f}": x}

    with pytest.raises(precast.errors.DataDependentError, match="test_texts"):
        precast.export(Naming(), (torch.ones(2),))
