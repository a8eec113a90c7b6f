import errno
import os
import resource
import signal

import pytest

from precast.cache import Store
from precast.cache.folder import check_private
from precast.errors import CacheError


def use(store, key):
    """Everything that compiling does with a store; gives what it has to work for in any case."""
    store.put("graphs", key, b"data")
    store.get("graphs", key)
    store.discard("graphs", key)
    with store.held():
        return store.file("libraries", key, lambda target: target.write_bytes(b"library")).read_bytes()


def assert_goes_on_with_one_warning(store, key, told, word):
    assert use(store, key) == use(store, key) == b"library"
    assert [word in str(warning.message) for warning in told] == [True]


def test_a_folder_that_others_can_write_to_is_refused(store, key, told):
    store.directory.mkdir()
    store.directory.chmod(0o777)
    assert_goes_on_with_one_warning(store, key, told, "others can write")
    assert not list(store.directory.iterdir())


def test_a_folder_that_the_group_can_write_to_is_refused(store):
    store.directory.mkdir()
    store.directory.chmod(0o770)
    with pytest.raises(CacheError, match="chmod go-w"):
        check_private(store.directory)


def test_a_folder_of_someone_else_is_refused(store, key, told, monkeypatch):
    store.directory.mkdir()
    owner = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    assert_goes_on_with_one_warning(store, key, told, "belongs to another user")
    assert not list(store.directory.iterdir())


def test_entries_of_an_inner_folder_that_others_can_write_to_are_not_read(store, key, told):
    store.put("graphs", key, b"data")
    next(store.directory.iterdir()).chmod(0o777)
    assert Store(store.directory, limit=2**20).get("graphs", key) is None
    assert len(told) == 1


def test_a_file_where_the_folder_should_be(store, key, told):
    store.directory.write_text("a file")
    assert_goes_on_with_one_warning(store, key, told, "File exists")


def test_a_folder_that_cannot_be_made(tmp_path, key, told):
    (tmp_path / "file").write_text("a file")
    assert_goes_on_with_one_warning(Store(tmp_path / "file" / "cache", limit=2**20), key, told, "Not a directory")


def test_a_disk_that_is_full(store, key, told, monkeypatch):
    def fail(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    assert_goes_on_with_one_warning(store, key, told, "No space left")
    assert not [path for path in store.directory.rglob("*") if path.is_file() and path.name != "lock"]


def test_a_write_that_the_system_cuts_short_leaves_nothing(store, key, told):
    previous = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, previous[1]))
    try:
        store.put("graphs", key, b"x" * 5000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, previous)
        signal.signal(signal.SIGXFSZ, handler)
    assert len(told) == 1
    assert store.get("graphs", key) is None
    assert store.info().entries == 0


@pytest.mark.parametrize("action", [Store.info, Store.clear])
def test_who_asks_about_a_refused_folder_is_told(store, key, action):
    store.put("graphs", key, b"data")
    store.directory.chmod(0o777)
    with pytest.raises(CacheError, match="others can write"):
        action(store)


def test_clearing_a_store_in_use_gives_up_with_advice(store, key, monkeypatch):
    store.put("graphs", key, b"data")
    monkeypatch.setattr("precast.cache.store._PATIENCE_TO_CLEAR", 0.02)
    with store.held(), pytest.raises(CacheError, match="wait for programs"):
        store.clear()
    assert store.get("graphs", key) == b"data"


@pytest.mark.parametrize("levels", [1, 2])
def test_entries_are_read_from_no_folder_that_others_can_write_to(store, key, told, levels):
    store.put("libraries", key, b"code")
    (entry,) = (path for path in store.directory.rglob(f"{key}*") if path.is_file())
    entry.parents[levels - 1].chmod(0o777)
    assert Store(store.directory, limit=2**20).get("libraries", key) is None
    assert "others can write" in str(told[0].message)


def test_too_many_open_files_are_no_damage(store, key, told, monkeypatch):
    store.put("graphs", key, b"data")

    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("precast.cache.entries.os.open", refuse)
        assert store.get("graphs", key) is None
    assert store.get("graphs", key) == b"data"
    assert "too many open files" in str(told[0].message)


def test_an_entry_of_many_holes_is_not_read(store, key, told):
    store.put("graphs", key, b"data")
    (entry,) = (path for path in store.directory.rglob(f"{key}*") if path.is_file())
    os.truncate(entry, 50 << 30)
    assert store.get("graphs", key) is None
    assert "more than may be kept" in str(told[0].message)
