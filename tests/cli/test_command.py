import json
import os
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from precast import __version__, cli
from precast.cache import own_sources
from precast.cli.unexpected import unexpected_message
from precast.errors import PrecastError


@pytest.fixture
def run():
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


@pytest.fixture
def failing_subcommand(monkeypatch):
    module = typer.Typer(add_completion=False)

    @module.command()
    def fail():
        raise PrecastError("the stove is cold", why="it is off", fix="turn it on")

    monkeypatch.setitem(cli.SUBCOMMANDS, "fail", "Fail.")
    monkeypatch.setattr(cli, "import_module", lambda name: type("", (), {"app": module}))


def test_version(run):
    result = run("--version")
    assert (result.exit_code, result.output) == (0, f"precast {__version__}\n")


def test_help_lists_the_subcommands(run):
    result = run("--help")
    assert result.exit_code == 0
    for name, summary in cli.SUBCOMMANDS.items():
        assert name in result.output
        assert summary in result.output


@pytest.mark.parametrize("name", cli.SUBCOMMANDS)
def test_a_subcommand_says_of_itself_what_the_list_says(run, name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert cli.SUBCOMMANDS[name] in result.output


@pytest.mark.parametrize(
    "words",
    [*([name] for name in cli.SUBCOMMANDS if name != "cache"), ["cache", "info"], ["cache", "clear"]],
    ids=" ".join,
)
def test_every_command_shows_examples_and_prints_json(run, words):
    told = run(*words, "--help").output
    assert f"precast {' '.join(words)}" in told.partition("Examples:")[2]
    assert "--json" in told


def test_help_imports_neither_torch_nor_any_subcommand():
    code = (
        "import sys; from typer.testing import CliRunner; from precast.cli import app, SUBCOMMANDS;"
        "assert CliRunner().invoke(app, ['--help']).exit_code == 0;"
        "loaded = {'torch', *(f'precast.cli.{name}' for name in SUBCOMMANDS)} & sys.modules.keys();"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_every_help_is_there_without_torch():
    code = f"""
import sys
sys.modules["torch"] = None
from typer.testing import CliRunner
from precast.cli import app
for name in {list(cli.SUBCOMMANDS)!r}:
    result = CliRunner().invoke(app, [name, "--help"])
    assert result.exit_code == 0, name + result.stderr
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_runs_as_a_module():
    result = subprocess.run([sys.executable, "-m", "precast", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"precast {__version__}\n"


def test_a_precast_error_is_told_without_a_traceback(run, failing_subcommand):
    result = run("fail")
    assert result.exit_code == 1
    assert result.stderr == "error: the stove is cold\n  why: it is off\n  fix: turn it on\n"


def test_debug_shows_where_an_error_was_raised(run, failing_subcommand):
    assert isinstance(run("--debug", "fail").exception, PrecastError)


@pytest.mark.parametrize("arguments", [["--wrong"], ["docter"], ["doctor", "--wrong"]])
def test_a_wrong_call_exits_with_2(run, arguments):
    assert run(*arguments).exit_code == 2


def test_what_nobody_foresaw_is_told_in_short(tmp_path):
    code = "from precast import cli; cli.SUBCOMMANDS.clear(); cli.get_command = lambda app: 1 / 0; cli.main()"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ZeroDivisionError")
    assert "Traceback" not in result.stderr


def test_options_of_subcommands_are_completed():
    environment = {"_PRECAST_COMPLETE": "complete_bash", "COMP_WORDS": "precast run --thr", "COMP_CWORD": "2"}
    command = [sys.executable, "-m", "precast"]
    result = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True)
    assert "--threads" in result.stdout


BAD_MODEL = """
import torch

class Net(torch.nn.Module):
    def forward(self, x):
        return x @ torch.ones(3, 3)

def make():
    return Net(), (torch.ones(2, 4),)
"""


def test_an_error_of_the_users_program_is_told_with_its_place(tmp_path):
    (tmp_path / "bad.py").write_text(BAD_MODEL)
    command = [sys.executable, "-m", "precast", "export", "bad.py:make", "-o", "bad.pt2"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "error: RuntimeError: a and b must have same reduction dim" in result.stderr
    assert f"at:  {tmp_path / 'bad.py'}:6 in forward" in result.stderr
    assert "bug in Precast" not in result.stderr


def test_a_wrong_input_of_one_layer_is_told_with_that_layer(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import torch\n\ndef make():\n    return torch.nn.Linear(4, 3), (torch.ones(2, 5),)\n"
    )
    command = [sys.executable, "-m", "precast", "export", "bad.py:make", "-o", "bad.pt2"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "linear.py" in result.stderr
    assert "bug in Precast" not in result.stderr


def raised(function):
    with pytest.raises(Exception) as told:  # noqa: PT011
        function()
    return unexpected_message(told.value, told.value.__traceback__)


def test_an_error_that_precast_raises_may_be_its_mistake():
    assert "may be a bug in Precast" in raised(lambda: own_sources("no.such.module"))


def test_an_error_that_the_standard_library_raises_for_the_user_is_the_users():
    assert f"at:  {__file__}" in raised(lambda: json.loads("{"))
