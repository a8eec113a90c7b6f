"""Linear algebra in packages: LAPACK computes it where torch is not, with eager's numbers and eager's errors."""

import os
import re
import subprocess
import sys
from functools import cache

import numpy as np
import pytest
import torch
from torch import linalg
from torch.utils import _pytree as pytree

import precast
import precast.runtime


def positive(x):
    return x @ x.mT + 3 * torch.eye(x.shape[-1], dtype=x.dtype)


def reflections(tall):
    packed, factors = torch.geqrf(tall)
    return packed, factors


# Of matrices (2, 4, 4), right sides (2, 4, 3) and tall matrices (2, 6, 4).
CASES = {
    "cholesky": lambda x, b, t: (linalg.cholesky(positive(x)), linalg.cholesky(positive(x[0]), upper=True)),
    "cholesky_ex": lambda x, b, t: linalg.cholesky_ex(x),
    "cholesky, the old way": lambda x, b, t: torch.cholesky(positive(x)),
    "cholesky_solve": lambda x, b, t: torch.cholesky_solve(b, linalg.cholesky(positive(x))),
    "cholesky_solve above": lambda x, b, t: torch.cholesky_solve(b, linalg.cholesky(positive(x)).mT, upper=True),
    "cholesky_inverse": lambda x, b, t: torch.cholesky_inverse(linalg.cholesky(positive(x))),
    "inv": lambda x, b, t: (linalg.inv(x), linalg.inv(x.mT), linalg.inv_ex(x[0])),
    "solve": lambda x, b, t: [
        linalg.solve(*pair) for pair in ((x, b), (x, b[..., 0]), (x, b[0]), (x[0], b), (x[0], b[0, :, 0]))
    ],
    "solve from the right": lambda x, b, t: (linalg.solve(x, b.mT, left=False), linalg.solve(x.mT, b.mT, left=False)),
    "solve_ex": lambda x, b, t: linalg.solve_ex(x.mT, b),
    "tensorsolve": lambda x, b, t: linalg.tensorsolve(x[0].reshape(2, 2, 4), b[0, :, 0].reshape(2, 2)),
    "tensorinv": lambda x, b, t: linalg.tensorinv(x[0].reshape(4, 2, 2), ind=1),
    "lu_factor": lambda x, b, t: (*linalg.lu_factor(t), *linalg.lu_factor_ex(t.mT)),
    "lu": lambda x, b, t: (*linalg.lu(t), *linalg.lu(t.mT)),
    "lu_solve": lambda x, b, t: [
        linalg.lu_solve(*linalg.lu_factor(x), b if left else b.mT, left=left, adjoint=adjoint)
        for left in (True, False) for adjoint in (True, False)
    ],
    "det": lambda x, b, t: (linalg.det(x), linalg.det(x.mT), torch.logdet(positive(x))),
    "slogdet": lambda x, b, t: (*linalg.slogdet(x), *linalg.slogdet(-x[0])),
    "solve_triangular": lambda x, b, t: [
        linalg.solve_triangular(x + 3 * torch.eye(4), b if left else b.mT, upper=upper, left=left, unitriangular=ones)
        for left in (True, False) for upper in (True, False) for ones in (True, False)
    ],
    "triangular_solve": lambda x, b, t: torch.triangular_solve(b, x + 3 * torch.eye(4), transpose=True),
    "qr": lambda x, b, t: (*linalg.qr(t), *linalg.qr(t.mT)),
    "qr whole": lambda x, b, t: (*linalg.qr(t, mode="complete"), *linalg.qr(t.mT, mode="complete")),
    "qr without q": lambda x, b, t: linalg.qr(t, mode="r"),
    "householder_product": lambda x, b, t: linalg.householder_product(*reflections(t)),
    "ormqr": lambda x, b, t: [
        torch.ormqr(*reflections(t), t if left else t.mT, left, transpose)
        for left in (True, False) for transpose in (True, False)
    ],
    "eigvalsh": lambda x, b, t: (linalg.eigvalsh(positive(x)), linalg.eigvalsh(x, UPLO="U")),
    "eigh": lambda x, b, t: [(v * w.unsqueeze(-2)) @ v.mT for w, v in (linalg.eigh(x), linalg.eigh(x, UPLO="U"))],
    "svdvals": lambda x, b, t: (linalg.svdvals(t), linalg.svdvals(t.mT)),
    "svd": lambda x, b, t: [
        (u * s.unsqueeze(-2)) @ v for u, s, v in (linalg.svd(t, False), linalg.svd(t.mT, False), linalg.svd(x[0]))
    ],
    "svd whole": lambda x, b, t: [
        (u[..., :4].abs(), s, v[..., :4, :].abs(), u @ u.mT, v @ v.mT) for u, s, v in (linalg.svd(t), linalg.svd(t.mT))
    ],
    "matrix_rank": lambda x, b, t: (linalg.matrix_rank(t), linalg.matrix_rank(positive(x), hermitian=True)),
    "pinv": lambda x, b, t: (linalg.pinv(t), linalg.pinv(t.mT, atol=0.5), linalg.pinv(positive(x), hermitian=True)),
    "cond": lambda x, b, t: (linalg.cond(x), linalg.cond(x, 1), linalg.matrix_norm(t, 2), linalg.matrix_norm(t, "nuc")),
    "matrix_power": lambda x, b, t: linalg.matrix_power(x, -3),
    "matrix_exp": lambda x, b, t: (linalg.matrix_exp(x), linalg.matrix_exp(9 * x), linalg.matrix_exp(1e-3 * x[0])),
    "lstsq": lambda x, b, t: (linalg.lstsq(t, t[..., :2] ** 2)[0], linalg.lstsq(t.mT, b)[0::2]),
    "lstsq of vectors": lambda x, b, t: linalg.lstsq(t, t[..., 0] ** 2).solution,
    "lstsq with singular values": lambda x, b, t: [tuple(linalg.lstsq(x, b, driver=way)) for way in ("gelsd", "gelss")],
    # With another driver, eager's results hang on memory that nothing was written to.
    "lstsq without small ones": lambda x, b, t: [
        tuple(linalg.lstsq(x, b, rcond=0.3, driver=way)) for way in ("gelsd", "gelss")
    ],
}  # fmt: skip
NOT_DIFFERENTIABLE = ("cholesky_ex", "matrix_rank", "qr without q", "qr whole", "cond", "ormqr", "householder_product")


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(2, *shape, generator=generator, dtype=dtype) for shape in ((4, 4), (4, 3), (6, 4)))


def gradient_of(function):
    def loss(*tensors):
        results = [each for each in pytree.tree_leaves(function(*tensors)) if each.is_floating_point()]
        return sum((each * each.detach().cos()).sum() for each in results)

    return lambda *tensors: torch.func.grad(loss, argnums=tuple(range(len(tensors))))(*tensors)


def packaged(programs, path, **options):
    entries = {_entry(name): program for name, program in programs.items()}
    model = precast.runtime.load(precast.package(entries, path=path, samples=False, **options))

    def call(name, tensors):
        arrays = [tensor.detach().numpy() for tensor in tensors]
        return pytree.tree_map_only((np.ndarray, np.generic), torch.as_tensor, model[_entry(name)](*arrays))

    return call


def _entry(name):
    return re.sub(r"\W+", "_", name)


def assert_equal(mine, eagers, *, factor=1.0):
    """The numbers of two trees, whatever containers they are in; as close as LAPACK and LAPACK are."""
    for ours, theirs in zip(pytree.tree_leaves(mine), pytree.tree_leaves(eagers), strict=True):
        tolerance = factor * (1e-9 if theirs.dtype == torch.float64 else 2e-4)
        scale = max(1.0, theirs.abs().max().item()) if theirs.numel() else 1.0
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


TYPES = (torch.float64, torch.float32)
DIFFERENTIABLE = [name for name in CASES if name not in NOT_DIFFERENTIABLE]
PARTS = 3


def in_parts(names, count):
    """Each name with the number of its part; the fast tests run the first part, as one package."""
    return [
        pytest.param(name, part, marks=pytest.mark.slow if part else ())
        for part in range(count)
        for name in names[part::count]
    ]


@pytest.fixture(scope="module")
def forward(request, tmp_path_factory):
    """Every case in one of the two types, which take turns."""
    typed = {name: TYPES[(number + request.param) % 2] for number, name in enumerate(CASES)}
    programs = {f"{name} {dtype}": (CASES[name], inputs(dtype)) for name, dtype in typed.items()}
    # Numbers that a case adds are of torch's usual type.
    call = packaged(programs, tmp_path_factory.mktemp("forward") / "model.precast")
    return lambda name: (call(f"{name} {typed[name]}", inputs(typed[name])), CASES[name](*inputs(typed[name])))


@pytest.mark.parametrize("forward", [0, pytest.param(1, marks=pytest.mark.slow)], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_results_are_eagers(name, forward):
    assert_equal(*forward(name))


@pytest.fixture(scope="module")
def backward(tmp_path_factory):
    @cache
    def of_part(part):
        programs = {name: (gradient_of(CASES[name]), inputs()) for name in DIFFERENTIABLE[part::PARTS]}
        return packaged(programs, tmp_path_factory.mktemp("backward") / "model.precast")

    return of_part


@pytest.mark.parametrize(("name", "part"), in_parts(DIFFERENTIABLE, PARTS))
def test_gradients_are_eagers(name, part, backward):
    assert_equal(backward(part)(name, inputs()), gradient_of(CASES[name])(*inputs()), factor=100)


def test_no_number_counts_twice_in_a_batch(tmp_path):
    """Eager hands the columns' order of one matrix on to the next; alone, they have the results that they have here."""
    x, b, _ = inputs()
    call = packaged({"solve": (lambda x, b: linalg.lstsq(x, b, rcond=0.3).solution, (x, b))}, tmp_path / "m.precast")
    whole = call("solve", (x, b))
    for place in range(2):
        alone = call("solve", (x[[place, place]], b[[place, place]]))
        torch.testing.assert_close(whole[place], alone[0])
        torch.testing.assert_close(alone[0], alone[1])


@pytest.mark.parametrize(
    ("library", "message"),
    [("/nowhere.so", "'/nowhere.so', which PRECAST_LAPACK names"), ("libc.so.6", "libc.so.6 has no dgetrf_")],
)
def test_a_library_that_does_not_do_is_named(library, message, tmp_path):
    path = precast.package(linalg.inv, (torch.eye(3),), path=tmp_path / "inverse.precast")
    code = "import sys, numpy, precast.runtime; precast.runtime.load(sys.argv[1])(numpy.eye(3, dtype='f4'))"
    environment = {**os.environ, "PRECAST_LAPACK": library}
    run = subprocess.run(
        [sys.executable, "-c", code, str(path)], env=environment, capture_output=True, text=True, check=False
    )
    assert run.returncode == 1
    assert message in run.stderr
