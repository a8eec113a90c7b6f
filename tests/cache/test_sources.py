import pytest

from precast.cache import keys as sources_module
from precast.cache import own_sources


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package of two folders in place of ours."""
    for name in ("top.py", "lower/rule.py", "lower/deep/part.h", "report/page.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(sources_module, "_ROOT", str(tmp_path))
    monkeypatch.setattr(sources_module, "_digests", sources_module._digests.__wrapped__)
    return tmp_path


@pytest.mark.parametrize("changed", ["top.py", "lower/rule.py", "lower/deep/part.h"])
def test_any_changed_file_changes_the_hash_of_all(package, changed):
    before = own_sources()
    (package / changed).write_text("two")
    assert own_sources() != before


def test_folders_are_told_apart(package):
    before = own_sources("lower")
    (package / "report/page.py").write_text("two")
    assert own_sources("lower") == before
    (package / "lower/deep/part.h").rename(package / "lower/part.h")
    assert own_sources("lower") != before


def test_what_is_no_source_does_not_count(package):
    before = own_sources()
    (package / "lower/__pycache__").mkdir()
    (package / "lower/__pycache__/rule.py").write_text("compiled")
    (package / "notes.txt").write_text("notes")
    assert own_sources() == before
