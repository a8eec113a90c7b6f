"""What eager runs and is hard to run without torch is packaged, and gives the same numbers."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch._higher_order_ops import while_loop
from torch.utils import _pytree as pytree

import precast
import precast.runtime
from precast.errors import CallMismatchError, InputValueError
from tests.packaging.programs_with_walls import CASES

SCRIPT = """
import pickle, sys
sys.modules["torch"] = None
import precast.runtime
model = precast.runtime.load(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    calls = pickle.load(file)
results = {name: [model[name](*call) for call in each] for name, each in calls.items()}
with open(sys.argv[3], "wb") as file:
    pickle.dump(results, file)
"""


@pytest.fixture(scope="module")
def modules():
    return {name: case.make().eval() for name, case in CASES.items()}


@pytest.fixture(scope="module")
def path(modules, tmp_path_factory):
    entries = {name: (modules[name], case.calls[0], None, case.dynamic_shapes) for name, case in CASES.items()}
    with torch.no_grad():
        return precast.package(entries, path=tmp_path_factory.mktemp("walls") / "walls.precast")


@pytest.fixture(scope="module")
def without_torch(path):
    """What all entries give in a process that has no torch, by name."""
    calls, results = path.with_name("calls"), path.with_name("results")
    given = {name: [_as_numpy(call) for call in case.calls] for name, case in CASES.items()}
    calls.write_bytes(pickle.dumps(given))
    subprocess.run([sys.executable, "-c", SCRIPT, path, calls, results], check=True)
    return pickle.loads(results.read_bytes())


def _as_numpy(tree):
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.resolve_conj().numpy(), tree)


def assert_equal(mine, eagers, tolerance):
    mine, mine_tree = pytree.tree_flatten(mine)
    eagers, tree = pytree.tree_flatten(eagers)
    assert mine_tree == tree
    for one, other in zip(mine, eagers, strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(one, other, rtol=10 * tolerance, atol=tolerance)


@pytest.mark.parametrize("name", CASES)
def test_a_package_gives_what_eager_gives(modules, path, without_torch, name):
    model = precast.runtime.load(path)
    for call, alone in zip(CASES[name].calls, without_torch[name], strict=True):
        with torch.no_grad():
            expected = modules[name](*call)
        assert_equal(model[name](*call), expected, CASES[name].tolerance)
        as_tensors = pytree.tree_map_only((np.ndarray, np.generic), torch.from_numpy, alone)
        assert_equal(as_tensors, expected, CASES[name].tolerance)


def test_the_samples_of_such_programs_are_verified(path):
    assert {check.entry for check in precast.runtime.load(path).verify()} == set(CASES)


def test_a_number_beyond_what_was_promised_is_refused(path):
    model = precast.runtime.load(path)
    for number in (9, -1, 2**40):
        with pytest.raises(RuntimeError, match=r"at most 8 was expected|u1 >= 0"):
            model["slice_by_item"](torch.randn(8, 2), torch.tensor(number))
    with pytest.raises(RuntimeError, match="repeats can not be negative"):
        model["repeat_interleave_by_tensor"](torch.tensor([2, -1, 3]), torch.randn(3, 2))
    with pytest.raises(RuntimeError, match="allocated size does not match"):
        model["repeat_interleave_to_a_size"](torch.tensor([2, 1, 3]), torch.randn(3, 2))
    for lengths in ([1, 2, 3], [0, 0, 0], [-1, 5, 5], [10, 0, 0], [0, 10, 0], [0, 0, 10]):
        with pytest.raises(RuntimeError, match=r"Eq\(u0 \+ u1 \+ u2, s\d+\)|was expected"):
            model["split_by_data"](torch.randn(2, 9), torch.tensor(lengths))


def unbounded(x, n):
    return torch.zeros(n.item()), x[: n.item()].sum()


def anywhere(x, n):
    row = n.item()
    torch._check(row >= 0)
    torch._check(row <= 8)
    return torch.select(x, 0, row) * 2


@pytest.mark.parametrize(("function", "why"), [(unbounded, "any size"), (anywhere, "outside of tensors")])
def test_what_memory_cannot_be_set_aside_for_is_refused_when_packaging(function, why, tmp_path):
    with pytest.raises(precast.errors.LoweringError, match=why):
        precast.package(function, (torch.randn(8, 2), torch.tensor(3)), path=tmp_path / "m.precast")


def test_numbers_that_depend_on_data_are_returned_without_native_code_too(path):
    model, call = precast.runtime.load(path, allow_native=False), CASES["counts_returned"].calls[0]
    _, twice, item = model["counts_returned"](*call)
    assert (twice, item) == (int((call[0][:, 0] > 0).sum()) * 2 + 1, 2)


def test_bodies_of_loops_may_index_by_a_tensor(tmp_path):
    def greedy(rows, last):
        def body(number, state):
            return number + 1, state + rows[number] * state.argmax()

        return while_loop(lambda number, state: number < last, body, (torch.tensor(0), torch.zeros(3)))

    rows = torch.arange(15.0).reshape(5, 3).sin()
    path = precast.package(greedy, (rows, torch.tensor(2)), path=tmp_path / "loop.precast")
    for last in (0, 2, 5):
        state = torch.zeros(3)
        for number in range(last):
            state = state + rows[number] * state.argmax()
        number, found = precast.runtime.load(path)(rows, torch.tensor(last))
        assert number == last
        torch.testing.assert_close(found, state)


def test_integers_that_are_sizes_start_at_zero(tmp_path):
    def scaled(x, n):
        return x * n

    path, automatic = tmp_path / "scaled.precast", (None, precast.Dim.AUTO)
    x = torch.ones(2)
    precast.package(scaled, (x, 3), path=path, dynamic_shapes=automatic)
    model = precast.runtime.load(path)
    assert model(x, 7).tolist() == [7, 7]
    with pytest.raises(CallMismatchError, match="n is -2, outside of n in 0"):
        model(x, -2)
    with pytest.raises(InputValueError, match="passes the integer -2"):
        precast.package(scaled, (x, -2), path=path, dynamic_shapes=automatic)
