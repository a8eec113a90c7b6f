"""``precast package``, ``run``, ``verify``, ``inspect``, ``bench`` and ``compile``: the life of one model."""

import json
import subprocess
import sys

import numpy
import pytest
import torch
from typer.testing import CliRunner

from precast import cli
from precast.runtime import aot_load

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh()).eval(), (torch.ones(2, 4),)

def two():
    model, args = make()
    return {"forward": (model, args), "row": (model, (torch.ones(1, 4),))}

def nested():
    return (lambda pair, scale: {"sum": (pair[0] + pair[1]) * scale}), ((torch.ones(2), torch.ones(2)), 3.0)

def broken():
    raise KeyError("weights")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packaged")
    (folder / "packaged_models.py").write_text(MODEL)
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(folder / "cache"))
    yield lambda *arguments: CliRunner().invoke(cli.app, arguments)
    sys.modules.pop("packaged_models", None)


@pytest.fixture
def packaged(run, folder):
    path = folder / "model.precast"
    if not path.exists():
        result = run("package", "packaged_models.py:make", "-o", "model.precast")
        assert result.exit_code == 0, result.output
    return "model.precast"


def test_packaging_tells_what_was_written(run, folder):
    data = json.loads(run("package", "packaged_models.py:two", "-o", "two.precast", "--json").stdout)
    assert (data["entries"], data["targets"]) == (["forward", "row"], ["native"])
    assert (folder / "two.precast").stat().st_size == data["bytes"]
    result = json.loads(run("run", "two.precast", "--entry", "row", "--json").stdout)
    assert result["outputs"]["output"]["shape"] == [1, 3]


def test_a_file_runs_its_sample(run, packaged):
    data = json.loads(run("run", packaged, "--json").stdout)
    assert (data["entry"], data["target"]) == ("forward", "native")
    assert data["outputs"]["output"]["shape"] == [2, 3]
    assert "ran in" in run("run", packaged).stdout


def test_a_file_runs_arrays_and_writes_results(run, packaged, folder):
    inputs = numpy.full((2, 4), 0.5, numpy.float32)
    numpy.save(folder / "x.npy", inputs)
    assert run("run", packaged, "-i", "x.npy", "-o", "y.npz").exit_code == 0
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    expected = model(torch.from_numpy(inputs)).detach().numpy()
    numpy.testing.assert_allclose(numpy.load(folder / "y.npz")["output"], expected, rtol=1e-6)
    assert run("run", packaged, "-o", "results").exit_code == 0
    assert (folder / "results").is_file()


def test_arrays_take_their_places_in_a_nested_call(run, folder):
    assert run("package", "packaged_models.py:nested", "-o", "nested.precast").exit_code == 0
    numpy.savez(folder / "pair.npz", a=numpy.ones(2, numpy.float32), b=numpy.zeros(2, numpy.float32))
    data = json.loads(run("run", "nested.precast", "-i", "pair.npz", "--json").stdout)
    assert data["outputs"]["sum"]["mean"] == 3.0


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["run", "model.precast", "--entry", "no"], 1, "its entries are forward"),
        (["run", "model.precast", "-i", "x.npy", "-i", "x.npy"], 1, "takes 1 tensor, got 2"),
        (["run", "model.precast", "-i", "packaged_models.py"], 1, "cannot be read"),
        (["run", "model.precast", "-i", "nothing.npy"], 1, "No such file"),
        (["run", "packaged_models.py"], 3, "not a Precast archive"),
        (["run", "model.precast", "--target", "vax"], 3, "no code for the target 'vax'"),
        (["package", "packaged_models.py:broken"], 1, "KeyError: 'weights'"),
        (["package", "packaged_models.py:make", "--target", "vax"], 1, "There is no target 'vax'"),
    ],
)
def test_what_cannot_be_done_is_told_without_a_traceback(run, packaged, folder, arguments, code, told):
    numpy.save(folder / "x.npy", numpy.ones((2, 4), numpy.float32))
    result = run(*arguments)
    assert result.exit_code == code, result.output
    assert told in result.stderr
    assert "Traceback" not in result.stderr


def test_verifying_compares_the_samples(run, packaged):
    data = json.loads(run("verify", packaged, "--json").stdout)
    (check,) = data["checks"]
    assert check["largest_error"] <= check["tolerance"]
    assert "intact, 1 output of samples as expected" in run("verify", packaged).stdout


def test_a_changed_file_is_refused(run, packaged, folder):
    content = bytearray((folder / packaged).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / "changed.precast").write_bytes(content)
    assert run("verify", "changed.precast").exit_code == 3


def test_inspecting_a_package(run, packaged):
    data = json.loads(run("inspect", packaged, "--json").stdout)
    assert data["entries"]["forward"]["inputs"] == ["input: f32[2, 4]"]
    assert data["targets"] == [{"name": "native", "runs here": True, "missing": []}]
    assert "native, runs here" in run("inspect", packaged).stdout
    assert "aten.linear.default" in run("inspect", packaged, "--graph").stdout


def test_running_verifying_inspecting_and_timing_a_file_need_no_torch(run, packaged, folder):
    code = (
        "import sys; sys.modules['torch'] = None; from typer.testing import CliRunner; from precast.cli import app\n"
        "for words in (['run'], ['verify'], ['inspect'], ['bench', '--seconds', '0.1']):\n"
        "    result = CliRunner().invoke(app, [*words, 'model.precast'])\n"
        "    assert result.exit_code == 0, (words, result.output, result.exception)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


def test_timing_a_model_compares_with_eager(run):
    data = json.loads(run("bench", "packaged_models.py:make", "--seconds", "0.1", "--json").stdout)
    assert list(data) == ["eager", "precast"]
    assert data["precast"]["first_seconds"] > data["precast"]["seconds"] > 0
    for option in ("--train", "--freeze"):
        result = run("bench", "packaged_models.py:make", "--seconds", "0.1", option)
        assert result.exit_code == 0, result.output


def test_compiling_gives_a_library(run, folder):
    result = run("compile", "packaged_models.py:make", "-o", "model.so")
    assert result.exit_code == 0, result.output
    loaded = aot_load(folder / "model.so")
    assert loaded(torch.ones(2, 4)).shape == (2, 3)
