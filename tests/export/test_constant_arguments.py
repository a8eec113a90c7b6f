"""Arguments that are constants of a program: what follows from them is computed while tracing, and each call checks."""

import io

import pytest
import torch
from torch.nn import functional as F

import precast
from precast.errors import CaptureError, InputValueError
from precast.export import Dim, export, load, save
from precast.runtime import load as load_package
from tests.export.peer.asking import module_of

GRID = torch.tensor([[1, 4, 4], [1, 2, 2]])
X = torch.arange(60.0).reshape(20, 3)


def images(self, x, grid):
    """In the manner of vision towers: the sizes of images stand in a table."""
    places = []
    for frames, height, width in grid:
        rows = torch.arange(height).unsqueeze(1).expand(-1, width)
        places.append(rows.flatten().repeat(frames))
    ends = F.pad(torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0]).cumsum(0), (1, 0))
    kept = torch.arange(20)
    parts = torch.split(x if grid.max() > 9 else x * 2, (ends[1:] - ends[:-1]).tolist())
    return [part.sum() for part in parts], x[:, 0] + torch.cat(places), x[kept[kept != 3]], ends


def exported(forward, *args, names=("grid",), **options):
    return export(module_of(forward), args, constant_arguments=names, **options)


def test_what_follows_from_constants_may_decide():
    program = exported(images, X, GRID)
    torch.testing.assert_close(program.module()(X, GRID), images(None, X, GRID))
    with pytest.raises(RuntimeError, match=r"grid is a constant of this program, \[\[1, 4, 4\], \[1, 2, 2\]\]"):
        program.module()(X, GRID.flip(0))


def test_the_check_is_in_decomposed_programs_files_and_packages(tmp_path):
    program = exported(images, X, GRID)
    file = io.BytesIO()
    save(program, file)
    for module in (program.run_decompositions().module(), load(file).module()):
        torch.testing.assert_close(module(X, GRID), images(None, X, GRID))
        with pytest.raises(RuntimeError, match="grid is a constant"):
            module(X, GRID + 1)
    precast.package(program, path=tmp_path / "images.precast")
    model = load_package(tmp_path / "images.precast")
    parts, *_ = model(X.numpy(), GRID.numpy())
    assert [float(part) for part in parts] == [float(part) for part in images(None, X, GRID)[0]]
    with pytest.raises(RuntimeError, match="grid is a constant"):
        model(X.numpy(), (GRID + 1).numpy())


def test_results_are_new_in_each_call_and_arguments_themselves():
    module = exported(lambda self, x, grid: (x, grid, grid + 1), X, GRID).module()
    _, same, more = module(X, GRID)
    assert same is GRID
    more.zero_()
    assert torch.equal(module(X, GRID)[2], GRID + 1)


def test_what_is_written_into_before_it_meets_others_is_known():
    def forward(self, x, grid):
        table = torch.arange(4)
        table[1:3] = grid[:, 1]
        table[2:].add_(1)
        return x * table.sum().item(), table

    module = exported(forward, X, GRID).module()
    torch.testing.assert_close(module(X, GRID), forward(None, X, GRID))


def test_random_numbers_are_drawn_in_each_call():
    program = exported(lambda self, x, grid: x[0, 0] * torch.bernoulli(grid / 8.0), X, GRID)
    assert "aten.bernoulli.default" in {str(node.target) for node in program.graph.nodes}


def test_constants_in_containers_and_nan():
    table = {"a": torch.tensor([2.0, float("nan")]), "b": torch.tensor([1, 2])}
    module = exported(lambda self, x, of: x[: int(of["a"][0])] * of["b"][0], X, table, names=("of['a']",)).module()
    torch.testing.assert_close(module(X, {**table, "b": table["b"] * 3}), X[:2] * 3)
    with pytest.raises(RuntimeError, match=r"of\['a'\] is a constant"):
        module(X, {**table, "a": table["b"] * 1.0})


def test_sizes_of_other_arguments_may_change():
    shapes = {"x": {0: Dim("n", min=2)}, "grid": None}
    module = exported(lambda self, x, grid: x[: int(grid[0, 0])] + x.shape[0], X, GRID, dynamic_shapes=shapes).module()
    torch.testing.assert_close(module(X[:7], GRID), X[:1] + 7)


def test_numbers_are_constants_anyway():
    assert exported(lambda self, x, grid: x * grid, X, 3).graph_signature.user_inputs == ("x", 3)


@pytest.mark.parametrize(
    ("forward", "grid", "options", "error", "words"),
    [
        (lambda self, x, grid: x * grid.sum(), GRID, {"names": ("grd",)}, InputValueError, "names 'grd'"),
        (lambda self, x, grid: x * grid.sum(), torch.ones(2, requires_grad=True), {}, InputValueError, "requires grad"),
        (lambda self, x, grid: x * grid.add_(1).sum(), GRID, {}, CaptureError, "writes into a constant argument"),
        (
            lambda self, x, grid: x * grid.sum(),
            GRID,
            {"dynamic_shapes": {"x": None, "grid": {0: Dim.DYNAMIC}}},
            InputValueError,
            "its sizes may change",
        ),
    ],
)
def test_what_cannot_be_a_constant_is_refused(forward, grid, options, error, words):
    with pytest.raises(error, match=words):
        exported(forward, X, grid.clone() if not grid.requires_grad else grid, **options)


def test_writing_what_is_unknown_into_what_follows_from_constants_is_refused():
    def forward(self, x, grid):
        twice = grid * 2
        first = int(twice[0, 0])
        twice[0, 0] = x[0, 0].long()
        return x * first, twice

    with pytest.raises(CaptureError, match="writes into"):
        exported(forward, X, GRID)


@pytest.mark.models
@pytest.mark.parametrize("name", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl", "glm4v"])
def test_vision_towers_that_decide_on_a_table_of_images(name):
    from tests.export.towers import tower

    model, width = tower(name)
    grid = torch.tensor([[1, 4, 4], [1, 4, 8]])
    x = torch.randn(48, width)
    module = export(model, (x,), {"grid_thw": grid}, constant_arguments=["grid_thw"]).module()
    for each in (x, torch.randn(48, width)):
        torch.testing.assert_close(module(each, grid_thw=grid), model(each, grid_thw=grid), rtol=1e-4, atol=1e-4)
    with pytest.raises(RuntimeError, match="grid_thw is a constant"):
        module(x, grid_thw=grid.flip(0))
