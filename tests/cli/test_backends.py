import json
from importlib.metadata import EntryPoint

from typer.testing import CliRunner

from precast.cli import app


def test_every_backend_is_listed_with_what_it_does():
    result = CliRunner().invoke(app, ["backends"])
    assert result.exit_code == 0
    lines = {line.split()[0]: line for line in result.stdout.splitlines()[1:]}
    assert {"nop", "debug", "print", "ts"} <= set(lines)
    assert len(lines["nop"].split()) > 2


def test_json_maps_names_to_descriptions():
    told = json.loads(CliRunner().invoke(app, ["backends", "--json"]).stdout)
    assert told["nop"]


def test_a_backend_that_cannot_be_loaded_does_not_hide_the_others(monkeypatch):
    monkeypatch.setattr("precast.backend._BUILT_IN", {"nop": "precast.compilers:nop", "lost": "nowhere:x"})
    told = json.loads(CliRunner().invoke(app, ["backends", "--json"]).stdout)
    assert told["lost"].startswith("cannot be loaded")
    assert told["nop"]


def test_a_package_whose_backend_cannot_be_imported_does_not_hide_the_others(monkeypatch):
    offered = [EntryPoint("theirs", "precast.backend:nothing", "precast.backends")]
    monkeypatch.setattr("precast.backend.entry_points", lambda group: offered)
    told = json.loads(CliRunner().invoke(app, ["backends", "--json"]).stdout)
    assert told["theirs"].startswith("backend 'theirs' cannot be loaded: AttributeError")
    assert told["nop"]
