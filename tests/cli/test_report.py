import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import precast
from precast.cli import app
from precast.report.page import read_page
from tests.report.networks import make_network

MODEL = "tests.report.networks:make_network"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    model, args = make_network()
    return precast.package(model, args, path=tmp_path_factory.mktemp("packages") / "network.precast")


def run(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_model_becomes_a_page(tmp_path):
    path = tmp_path / "report.html"
    assert "report.html: " in run(MODEL, "-o", path, "--calls", 0)
    assert [graph["kind"] for graph in read_page(path)["graphs"]] == ["forward", "backward"]


def test_two_models_are_compared(tmp_path):
    path = tmp_path / "report.html"
    run(MODEL, "-o", path, "--calls", 0, "--inference", "--compare", MODEL)
    assert 'id="previous"' in path.read_text()
    run(MODEL, "-o", tmp_path / "next.html", "--calls", 0, "--inference", "--compare", path)
    assert 'id="previous"' in (tmp_path / "next.html").read_text()


def test_the_data_is_told_as_json():
    assert json.loads(run(MODEL, "--calls", 0, "--inference", "--json"))["title"] == "Network"


def test_packages_are_reported_with_their_entries_and_programs(package, tmp_path):
    run(package, "-o", tmp_path / "report.html")
    data = read_page(tmp_path / "report.html")
    (entry,) = data["package"]["entries"]
    assert entry["signature"].startswith("forward(x: f32[8, 16])")
    assert "aten.gelu.default" in {node["operator"] for node in data["graphs"][0]["nodes"]}


def test_packages_are_reported_without_torch(package, tmp_path):
    code = "import sys; sys.modules['torch'] = None; from precast.cli import main; main()"
    command = [sys.executable, "-c", code, "report", package, "-o", tmp_path / "report.html"]
    subprocess.run(command, check=True)
    assert read_page(tmp_path / "report.html")["package"]["weights"]
