import json

import pytest
from typer.testing import CliRunner

from precast.cache import content_key, open_store
from precast.cli import app
from precast.options import Options


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("PRECAST_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PRECAST_CACHE_BYTES", "1M")
    return lambda *arguments, **others: CliRunner().invoke(app, ["cache", *arguments], **others)


@pytest.fixture
def filled(run):
    store = open_store(Options.from_environment())
    store.put("graphs", content_key(["a"]), b"data")
    store.put("libraries", content_key(["a"]), b"x" * 200_000)
    return store


def test_info_tells_where_how_much_and_of_what(run, filled):
    result = run("info")
    assert result.exit_code == 0
    where, total, _, graphs, libraries = result.stdout.splitlines()
    assert where == str(filled.directory)
    assert total == "2 entries, 200.0 KiB of 1.0 MiB, 20% full"
    assert graphs.split()[:4] == ["graphs", "1", "4.0", "KiB"]
    assert libraries.split()[:4] == ["libraries", "1", "196.0", "KiB"]


def test_info_as_json(run, filled):
    told = json.loads(run("info", "--json").stdout)
    assert all(kind.pop("last_used") > 0 for kind in told["kinds"])
    assert told == {
        "directory": str(filled.directory),
        "limit": 2**20,
        "entries": 2,
        "bytes": 204800,
        "kinds": [
            {"kind": "graphs", "entries": 1, "bytes": 4096},
            {"kind": "libraries", "entries": 1, "bytes": 200704},
        ],
    }


def test_info_of_a_cache_that_was_never_used(run, tmp_path):
    result = run("info")
    assert result.stdout.splitlines()[1:] == ["0 entries, 0 B of 1.0 MiB, 0% full"]
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_may_hold_nothing_is_never_full(run, monkeypatch):
    monkeypatch.setenv("PRECAST_CACHE_BYTES", "0")
    assert run("info").stdout.splitlines()[1:] == ["0 entries, 0 B of 0 B"]


def test_clear_asks_first(run, filled):
    result = run("clear", input="n\n")
    assert result.exit_code == 1
    assert f"Remove 2 entries, 200.0 KiB from {filled.directory}?" in result.stderr
    assert filled.info().entries == 2


def test_clear_removes_on_a_yes(run, filled):
    assert run("clear", input="y\n").exit_code == 0
    assert filled.info().entries == 0


def test_clear_does_not_ask_when_told_so(run, filled):
    result = run("clear", "--yes")
    assert (result.exit_code, result.stdout) == (0, "Removed 2 entries, 200.0 KiB.\n")
    assert filled.info().entries == 0


def test_clear_of_an_empty_cache(run):
    result = run("clear")
    assert (result.exit_code, result.stdout) == (0, "The cache is empty.\n")


def test_a_folder_that_others_can_write_to_is_an_error(run, filled):
    filled.directory.chmod(0o777)
    result = run("info")
    assert result.exit_code == 1
    assert "fix: chmod go-w" in result.stderr


def test_what_the_system_refuses_is_told_as_an_error(run, monkeypatch):
    monkeypatch.setenv("PRECAST_CACHE_DIR", f"/{'x' * 300}")
    result = run("info")
    assert result.exit_code == 1
    assert "File name too long" in result.stderr


def test_clear_as_json_tells_what_was_removed(run, filled):
    result = run("clear", "--yes", "--json")
    told = json.loads(result.stdout)
    assert (told["entries"], told["bytes"]) == (2, 204800)
    assert filled.info().entries == 0
    assert json.loads(run("clear", "--yes", "--json").stdout)["entries"] == 0


def test_the_question_does_not_stand_in_the_json(run, filled):
    result = run("clear", "--json", input="y\n")
    assert "Remove 2 entries" in result.stderr
    # What was typed is echoed by the test's terminal.
    assert json.loads(result.stdout.removeprefix(" y"))["entries"] == 2
