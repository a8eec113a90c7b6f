"""Sizes and numbers described in other ways: names, PyTorch's dims, the tensors themselves, further calls, errors."""

import io

import pytest
import torch
from torch.export import Dim as TorchDim
from torch.export import ShapesCollection as TorchShapesCollection

from precast import AdditionalInputs, ShapesCollection, dims, refine_dynamic_shapes_from_suggested_fixes
from precast.errors import InputTypeError, InputValueError, SymbolicShapeError
from precast.export import Dim, SymIntArgument, export, load, save
from tests.export.models import Function

X, Y = torch.ones(4, 3), torch.ones(4, 3)


def _adding():
    return Function(lambda x, y: x + y)


@pytest.mark.parametrize(
    "shapes",
    [
        [{0: "batch"}, {0: "batch"}],
        [{0: TorchDim("batch", max=64)}] * 2,
        [{0: TorchDim.AUTO}, {0: TorchDim.DYNAMIC(min=1, max=64)}],
        [(2 * TorchDim("half"), None)] * 2,
        [{0: dims("a", "b", max=64)[0]}] * 2,
        [{0: Dim.DYNAMIC(max=64)}, {0: Dim.AUTO(min=2)}],
    ],
)
def test_a_size_in_any_words(shapes):
    exported = export(_adding(), (X, Y), dynamic_shapes=[shapes])
    assert exported.module()(X.repeat(4, 1), Y.repeat(4, 1)).shape == (16, 3)
    assert sum(expression.is_Symbol for expression in exported.range_constraints) == 1


def test_bounds_of_hints_are_checked_at_each_call():
    exported = export(_adding(), (X, Y), dynamic_shapes=[[{0: Dim.DYNAMIC(max=8)}, {0: Dim.AUTO}]])
    with pytest.raises(ValueError, match="outside of"):
        exported.module()(torch.ones(9, 3), torch.ones(9, 3))


@pytest.mark.parametrize("kind", [ShapesCollection, TorchShapesCollection])
def test_shapes_by_tensor(kind):
    shapes = kind()
    shapes[X] = {0: Dim("batch")}
    shapes[Y] = {0: Dim("batch")}
    exported = export(Function(lambda x: x["a"] + x["b"][0]), ({"a": X, "b": [Y, 3]},), dynamic_shapes=shapes)
    assert exported.module()({"a": X[:2], "b": [Y[:2], 3]}).shape == (2, 3)


def test_shapes_of_a_tensor_that_is_no_argument():
    shapes = ShapesCollection()
    shapes[X.clone()] = {0: Dim("batch")}
    with pytest.raises(InputValueError, match="not among the arguments"):
        export(_adding(), (X, Y), dynamic_shapes=shapes)
    with pytest.raises(InputTypeError, match="for a int"):
        shapes[3] = Dim.AUTO


def test_what_differs_between_calls_is_free():
    more = AdditionalInputs()
    more.add((torch.ones(6, 3), 5))
    exported = export(Function(lambda x, n: x * n), (X, 3), dynamic_shapes=more)
    assert torch.equal(exported.module()(torch.ones(9, 3), -7), torch.full((9, 3), -7.0))


def test_further_calls_must_fit_the_program():
    more = AdditionalInputs()
    more.add((torch.ones(7, 3),))
    with pytest.raises(ValueError, match="Mod"):
        export(Function(lambda x: x.view(-1, 2, 3)), (X,), dynamic_shapes=more)
    more.add((torch.ones(7, 3, 1),))
    with pytest.raises(InputValueError, match="differ where nothing can be free"):
        export(Function(lambda x: x * 2), (X,), dynamic_shapes=more)


def test_an_error_is_read_back():
    batch = Dim("batch")
    with pytest.raises(SymbolicShapeError) as raised:
        export(Function(lambda x: x.view(-1, 2, 3)), (X,), dynamic_shapes=[[{0: batch}]])
    refined = refine_dynamic_shapes_from_suggested_fixes(str(raised.value), [[{0: batch}]])
    exported = export(Function(lambda x: x.view(-1, 2, 3)), (X,), dynamic_shapes=refined)
    assert exported.module()(torch.ones(10, 3)).shape == (5, 2, 3)


@pytest.mark.parametrize("text", ["no fix here", 'dynamic_shapes = __import__("os")', "dynamic_shapes = {1: 2**9}"])
def test_text_that_suggests_nothing(text):
    with pytest.raises(InputValueError, match="suggests no dynamic_shapes"):
        refine_dynamic_shapes_from_suggested_fixes(text, {})


def test_numbers_as_inputs(tmp_path):
    exported = export(Function(lambda x, n: (x[:n], n + 1)), (X, 3), dynamic_shapes=[[None, Dim.DYNAMIC]])
    assert isinstance(exported.graph_signature.input_specs[1].arg, SymIntArgument)
    save(exported, tmp_path / "a.pt2")
    for each in (exported, exported.run_decompositions(), load(tmp_path / "a.pt2")):
        rows, following = each.module()(X, 2)
        assert rows.shape == (2, 3)
        assert following == 3
        for refused in (-1, 5, 2.0, True):
            with pytest.raises(ValueError, match=r"args_1"):
                each.module()(X, refused)


def test_a_number_that_is_a_size():
    rows = Dim("rows", max=16)
    exported = export(Function(lambda x, n: x + torch.arange(n)), (Y[:, 0], 4), dynamic_shapes=[[{0: rows}, rows]])
    assert exported.module()(torch.zeros(7), 7).tolist() == list(range(7))
    with pytest.raises(ValueError, match=r"args_1 is 6"):
        exported.module()(torch.zeros(7), 6)


def test_a_number_that_the_program_pins():
    with pytest.raises(SymbolicShapeError, match="must be the constant 3"):
        export(Function(lambda x, n: x * (2 if n == 3 else 4)), (X, 3), dynamic_shapes=[[None, Dim.DYNAMIC]])
    exported = export(Function(lambda x, n: x * (2 if n == 3 else 4)), (X, 3), dynamic_shapes=[[None, Dim.AUTO]])
    assert exported.range_constraints == {}


def test_conditions_left_to_each_call():
    batch = Dim("batch")
    program = Function(lambda x: x.view(-1, 2, 3))
    exported = export(program, (X,), dynamic_shapes=[[{0: batch}]], prefer_deferred_runtime_asserts_over_guards=True)
    assert exported.module()(torch.ones(6, 3)).shape == (3, 2, 3)
    with pytest.raises(ValueError, match="Mod"):
        exported.module()(torch.ones(7, 3))


@pytest.mark.parametrize("written", [lambda d: d + 1.5, lambda d: d * -1, lambda d: 1 - d, lambda d: d - d])
def test_relations_that_are_not_linear(written):
    with pytest.raises(NotImplementedError, match="increasing linear"):
        written(Dim("batch"))


def test_floats_and_truth_values_are_told_from_whole_numbers_in_files_too():
    def forward(x):
        total = x.sum().item()
        return total, total > 2, x.long()[0].item()

    exported = export(Function(forward), (torch.ones(3),))
    file = io.BytesIO()
    save(exported, file)
    for program in (exported, load(file)):
        kinds = [type(spec.arg).__name__ for spec in program.graph_signature.output_specs]
        assert kinds == ["SymFloatArgument", "SymBoolArgument", "SymIntArgument"]
    assert load(file).module()(torch.ones(3)) == (3.0, True, 1)
