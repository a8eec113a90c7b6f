"""What a process finds or keeps in the store can be noted, and put into another store."""

from precast.cache.store import EntryName, Store


def test_entries_that_were_used_are_noted_with_their_suffix(tmp_path):
    store, key = Store(tmp_path / "one", limit=2**20), "a" * 64
    store.put("graphs", "b" * 64, b"before")
    names: set[EntryName] = set()
    with store.noted(names):
        store.file("objects", key, lambda path: path.write_bytes(b"code") and None, suffix=".so")
        store.get("graphs", "b" * 64)
        store.get("graphs", "c" * 64)
    store.put("graphs", "d" * 64, b"after")
    assert names == {EntryName("objects", key, ".so"), EntryName("graphs", "b" * 64, "")}
    other = Store(tmp_path / "two", limit=2**20)
    other.put("objects", key, store.get("objects", key), suffix=".so")
    found = other.file("objects", key, lambda path: None, suffix=".so")
    assert found.suffix == ".so"
    assert found.read_bytes() == b"code"
