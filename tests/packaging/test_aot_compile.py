"""Self-contained libraries: compiled to a file, loaded from it, called as the original."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import precast
from precast.errors import ArtifactError, InputValueError, LoweringError


def scaled(x, y, *, bias, shift=None):
    return {"out": x @ y + bias, "rows": x.shape[0], "shift": shift}


@pytest.fixture(scope="module")
def arguments():
    torch.manual_seed(0)
    return torch.randn(3, 4), torch.randn(4, 5), torch.randn(5)


@pytest.fixture(scope="module")
def library(arguments, tmp_path_factory):
    x, y, bias = arguments
    shapes = {"x": {0: precast.Dim("rows", max=100)}, "y": None, "bias": None}
    path = tmp_path_factory.mktemp("aot") / "scaled.so"
    options = {"output_path": path}
    assert precast.aot_compile(scaled, (x, y), {"bias": bias}, dynamic_shapes=shapes, options=options) == str(path)
    return path


def test_a_function_keeps_its_signature(library, arguments):
    _, y, bias = arguments
    function = precast.aot_load(library, "cpu")
    for rows in (3, 1, 100):
        x = torch.randn(rows, 4)
        result = function(bias=bias, y=y, x=x)
        torch.testing.assert_close(result["out"], x @ y + bias)
        assert (result["rows"], result["shift"]) == (rows, None)


def test_a_call_that_does_not_fit_is_refused(library, arguments):
    _, y, bias = arguments
    function = precast.aot_load(library, torch.device("cpu"))
    with pytest.raises(InputValueError, match=r"x\.shape\[0\] is 101, outside of rows in 0\.\.100"):
        function(torch.randn(101, 4), y, bias=bias)
    with pytest.raises(InputValueError, match="Missing the argument 'bias'"):
        function(torch.randn(3, 4), y)


class Counting(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return self.layer(x)


def test_a_module_with_weights_and_state(tmp_path):
    module, x = Counting(), torch.randn(2, 64)
    path = precast.aot_compile(module, (x,), options={"output_path": tmp_path / "counting.so"})
    function = precast.aot_load(path, "cpu")
    torch.testing.assert_close(function(x), module.layer(x))
    function(x)
    assert function.state["calls"] == 2
    assert module.calls == 0


def test_weights_are_mapped_read_only_at_a_page(tmp_path):
    path = precast.aot_compile(Counting(), (torch.randn(2, 64),), options={"output_path": tmp_path / "counting.so"})
    table = subprocess.run(["readelf", "-sW", path], check=True, capture_output=True, text=True).stdout
    address = next(line.split()[1] for line in table.splitlines() if "precast_embedded_weights" in line)
    assert int(address, 16) % 4096 == 0
    sections = subprocess.run(["readelf", "-SW", path], check=True, capture_output=True, text=True).stdout
    flags = next(line for line in sections.splitlines() if ".lrodata" in line).split()[-4]
    assert flags == "Al"


def test_by_default_it_lies_in_the_cache_directory(tmp_path):
    options = {"cache_directory": tmp_path}
    path = Path(precast.aot_compile(torch.relu, (torch.randn(3),), options=options))
    assert path.parent == tmp_path / "aot"
    assert precast.aot_load(path, "cpu")(torch.tensor([-1.0, 0.0, 2.0])).tolist() == [0, 0, 2]


def test_without_the_signature_it_takes_and_gives_flat_tensors(arguments, tmp_path):
    x, y, bias = arguments
    options = {"output_path": tmp_path / "flat.so"}
    path = precast.aot_compile(scaled, (x, y), {"bias": bias}, options=options, same_signature=False)
    (result,) = precast.aot_load(path, "cpu")(x, y, bias)
    torch.testing.assert_close(result, x @ y + bias)


def test_assumptions_about_sizes_are_checked_unless_removed(tmp_path):
    def function(x, y):
        return x + y.view(-1) if x.shape[0] % 2 == 0 else x

    n = precast.Dim.AUTO
    calls = {}
    for removed in (False, True):
        calls[removed] = precast.aot_load(
            precast.aot_compile(
                function,
                (torch.ones(4), torch.ones(4)),
                dynamic_shapes={"x": {0: n}, "y": {0: n}},
                options={"output_path": tmp_path / f"{removed}.so"},
                remove_runtime_assertions=removed,
            ),
            "cpu",
        )
    with pytest.raises(InputValueError, match=r"% 2.* does not hold for"):
        calls[False](torch.ones(5), torch.ones(5))
    assert calls[True](torch.ones(5), torch.ones(5)).tolist() == [2.0] * 5


def test_operators_that_need_torch_are_refused(tmp_path):
    with pytest.raises(LoweringError, match="linalg_eig"):
        precast.aot_compile(torch.linalg.eigvals, (torch.eye(2),), options={"output_path": tmp_path / "no.so"})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("device", "message"), [("cuda", "made for the CPU"), ("cuda:1", "CPU"), ("tpu", "a device")])
def test_other_devices_are_refused(library, device, message):
    with pytest.raises(InputValueError, match=message):
        precast.aot_load(library, device)


def test_what_is_no_library_of_ours_is_refused(tmp_path):
    (tmp_path / "text.so").write_text("not a library")
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        precast.aot_load(tmp_path / "text.so", "cpu")
    with pytest.raises(ArtifactError, match="no such file"):
        precast.aot_load(tmp_path / "none.so", "cpu")
    library = Path(sys.prefix) / "lib" / "libdnnl.so.3"
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        precast.aot_load(library, "cpu")


def test_a_library_out_of_a_package_says_where_to_go(tmp_path):
    from precast.artifact.package import open_package

    path = precast.package(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path / "m.precast")
    (tmp_path / "model.so").write_bytes(open_package(path).members["native/native/model.so"])
    with pytest.raises(ArtifactError, match="load the package"):
        precast.aot_load(tmp_path / "model.so", "cpu")


def test_it_loads_without_torch(library, tmp_path):
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, precast\n"
        "f = precast.aot_load(sys.argv[1], 'cpu')\n"
        "one = np.ones((2, 4), np.float32), np.ones((4, 5), np.float32)\n"
        "assert f(*one, bias=np.ones(5, np.float32))['out'].tolist() == [[5.0] * 5] * 2\n"
    )
    subprocess.run([sys.executable, "-c", code, library], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
