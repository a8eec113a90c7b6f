import os
import stat
import subprocess
import sys

import pytest

from precast.cache import Store, content_key, open_store
from precast.options import Options


def test_what_was_put_is_got(store, key):
    assert store.get("graphs", key) is None
    store.put("graphs", key, b"\0data\n")
    assert store.get("graphs", key) == b"\0data\n"


def test_empty_data_is_something(store, key):
    store.put("graphs", key, b"")
    assert store.get("graphs", key) == b""


def test_another_object_and_folder_spelling_see_the_same(store, key):
    store.put("graphs", key, b"data")
    assert Store(store.directory / ".." / store.directory.name, limit=2**20).get("graphs", key) == b"data"


def test_kinds_are_apart(store, key):
    store.put("graphs", key, b"data")
    assert store.get("objects", key) is None


def test_two_results_for_one_key_are_both_good(store, key):
    store.put("graphs", key, b"one")
    store.put("graphs", key, b"two")
    assert store.get("graphs", key) in (b"one", b"two")


def test_what_is_discarded_is_gone(store, key):
    store.put("graphs", key, b"one")
    store.put("graphs", key, b"two")
    store.discard("graphs", key)
    assert store.get("graphs", key) is None


@pytest.mark.parametrize(
    ("kind", "key"), [("../graphs", "0" * 64), ("partial", "0" * 64), ("graphs", "../" + "0" * 61)]
)
def test_names_that_lead_elsewhere_are_our_own_bug(store, kind, key):
    with pytest.raises(AssertionError):
        store.put(kind, key, b"data")


def test_a_file_is_made_once(store, key):
    made = []

    def make(target):
        made.append(target)
        target.write_bytes(b"library")

    first, second = (store.file("libraries", key, make, suffix=".so") for _ in range(2))
    assert first == second
    assert first.read_bytes() == b"library"
    assert (first.suffix, len(made)) == (".so", 1)
    assert not made[0].exists()


def test_a_file_whose_making_fails_is_not_kept(store, key):
    made = []

    def fail(target):
        made.append(target)
        target.write_bytes(b"half")
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        store.file("libraries", key, fail)
    assert not made[0].exists()
    assert store.info().entries == 0


def test_info_counts_by_kind(store, key):
    store.put("objects", key, b"x" * 5000)
    store.put("graphs", key, b"x")
    store.put("graphs", content_key(["another"]), b"x")
    store.get("graphs", key)
    store.get("libraries", key)
    info = store.info()
    assert [(kind.kind, kind.entries, kind.bytes) for kind in info.kinds] == [("graphs", 2, 8192), ("objects", 1, 8192)]
    assert (info.entries, info.bytes, info.hits, info.misses) == (3, 16384, 1, 1)


def test_looking_makes_no_folder(store):
    assert store.info().entries == 0
    assert store.clear().entries == 0
    assert not store.directory.exists()


def test_clear_removes_entries_and_nothing_else(store, key):
    store.put("graphs", key, b"data")
    (store.directory / "mine.txt").write_text("not the cache's")
    assert store.clear().entries == 1
    assert store.get("graphs", key) is None
    assert (store.directory / "mine.txt").exists()


def test_a_store_that_was_deleted_under_way_is_made_again(store, key):
    store.put("graphs", key, b"data")
    subprocess.run(["rm", "-r", store.directory], check=True)
    assert store.get("graphs", key) is None
    store.put("graphs", key, b"data")
    assert store.get("graphs", key) == b"data"


def test_only_the_owner_can_read(store, key):
    previous = os.umask(0)
    try:
        store.put("graphs", key, b"data")
    finally:
        os.umask(previous)
    modes = {path.is_dir(): stat.S_IMODE(path.stat().st_mode) for path in store.directory.rglob("*")}
    assert modes == {True: 0o700, False: 0o600}
    assert stat.S_IMODE(store.directory.stat().st_mode) == 0o700


def test_options_name_the_store(tmp_path):
    options = Options(cache_directory=tmp_path, cache_bytes=100)
    assert open_store(options) is open_store(Options(cache_directory=tmp_path, cache_bytes=100))
    assert (open_store(options).directory, open_store(options).limit) == (tmp_path, 100)


def test_imports_where_torch_is_absent():
    subprocess.run([sys.executable, "-c", "import sys; sys.modules['torch'] = None; import precast.cache"], check=True)
