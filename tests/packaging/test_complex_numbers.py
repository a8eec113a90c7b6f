"""Complex tensors at the border of packages: in state, in libraries, from torch's samples; what is refused."""

import numpy as np
import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import precast
import precast.runtime
from tests.packaging.programs_with_walls import CASES

OPERATORS = (
    "abs", "angle", "addmm", "cat", "conj", "div", "exp", "fft.fft", "fft.hfft", "fft.ihfft", "fft.irfftn", "fft.rfftn",
    "istft", "matmul", "mean", "mul", "polar", "reciprocal", "stft", "sum", "view_as_complex", "where",
)  # fmt: skip


def as_call(operator, sample):
    """A sample as a function of its tensors, and these."""
    leaves, tree = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [number for number, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]

    def function(*tensors):
        given = dict(zip(places, tensors, strict=True))
        first, args, kwargs = pytree.tree_unflatten([given.get(n, leaf) for n, leaf in enumerate(leaves)], tree)
        return operator(first, *args, **kwargs)

    return function, tuple(leaves[number] for number in places)


def samples(count):
    """Calls by operator and number."""
    found = {}
    for operator in (each for each in op_db if each.name in OPERATORS and not each.variant_test_name):
        dtype = torch.complex64 if torch.complex64 in operator.dtypes else torch.float32
        for number, sample in zip(range(count), operator.sample_inputs("cpu", dtype), strict=False):
            found[f"{operator.name}.{number}"] = as_call(operator, sample)
    return found


@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_torchs_own_samples(count, tmp_path):
    programs = samples(count)
    model = precast.runtime.load(precast.package(programs, path=tmp_path / "samples.precast", samples=False))
    for name, (function, tensors) in programs.items():
        arrays = [tensor.detach().resolve_conj().numpy() for tensor in tensors]
        mine = pytree.tree_map_only((np.ndarray, np.generic), torch.as_tensor, model[name](*arrays))
        torch.testing.assert_close(
            mine, function(*tensors).detach().resolve_conj(), msg=lambda text, at=name: f"{at}: {text}"
        )


@pytest.mark.parametrize("freeze", [False, None])
def test_complex_state_is_read_and_written(freeze, tmp_path):
    module, (z,) = CASES["ComplexWeights"].make(), CASES["ComplexWeights"].calls[0]
    with torch.no_grad():
        path = precast.package(module, (z,), path=tmp_path / "model.precast", options={"freeze": freeze})
        model = precast.runtime.load(path)
        for _ in range(2):
            np.testing.assert_allclose(model(z.numpy()), module(z).numpy(), rtol=1e-5, atol=1e-5)
    last = np.asarray(model.state["last"])
    assert last.dtype == np.complex64
    np.testing.assert_allclose(last, module.last.numpy(), rtol=1e-5)
    model.state["last"] = last * 1j
    before = model(z.numpy())
    model.state["last"] = last * 1j + 1
    np.testing.assert_allclose(model(z.numpy()), before + 1, rtol=1e-5, atol=1e-5)


def test_a_library_takes_and_returns_complex_tensors(tmp_path):
    z = torch.randn(3, 4, dtype=torch.complex128)
    options = {"output_path": str(tmp_path / "libmodel.so")}
    function = precast.aot_load(precast.aot_compile(torch.nn.Sequential(Turned()), (z,), options=options), "cpu")
    torch.testing.assert_close(function(z), z * 1j)


class Turned(torch.nn.Module):
    def forward(self, z):
        return z * 1j


def test_other_types_are_refused_where_complex_numbers_are_taken(tmp_path):
    model = precast.runtime.load(precast.package(Turned(), (torch.ones(2) * 1j,), path=tmp_path / "model.precast"))
    for wrong in (np.ones(2, np.float32), np.ones(2, np.complex128), np.ones((2, 2), np.float32)):
        with pytest.raises(precast.errors.PrecastError):
            model(wrong)


def test_functions_without_a_rule_are_refused_with_their_lines(tmp_path):
    def function(z):
        first = z.tanh()
        return first + torch.linalg.inv(z)

    with pytest.raises(precast.errors.LoweringError, match=r"(?s)z\.tanh\(\).*linalg\.inv\(z\)"):
        precast.package(function, (torch.eye(3) * 1j,), path=tmp_path / "model.precast")
