import os

from hypothesis import given
from hypothesis import strategies as st

from precast.cache import Store, content_key
from precast.cache.entries import Entry
from precast.cache.store import choose_evicted

BLOCK = 4096
KEYS = [content_key([str(number)]) for number in range(40)]


def store_of(tmp_path, blocks):
    return Store(tmp_path, limit=blocks * BLOCK)


def present(store):
    return [number for number, key in enumerate(KEYS) if store.get("graphs", key) is not None]


def age(store):
    """Make every entry an hour older, as time would."""
    for path in store.directory.rglob("*.*"):
        used = path.stat().st_mtime - 3600
        os.utime(path, (used, used))


def test_the_oldest_go_first(tmp_path):
    store = store_of(tmp_path, 8)
    for key in KEYS[:9]:
        age(store)
        store.put("graphs", key, b"data")
    assert present(store) == [2, 3, 4, 5, 6, 7, 8]


def test_use_counts_not_age(tmp_path):
    store = store_of(tmp_path, 8)
    for key in KEYS[:8]:
        age(store)
        store.put("graphs", key, b"data")
    age(store)
    assert store.get("graphs", KEYS[0]) == b"data"
    store.put("graphs", KEYS[8], b"data")
    assert present(store) == [0, 3, 4, 5, 6, 7, 8]


def test_use_of_a_file_counts_too(tmp_path):
    store = store_of(tmp_path, 8)
    for key in KEYS[:8]:
        age(store)
        store.file("graphs", key, lambda target: target.write_bytes(b"data"))
    age(store)
    store.file("graphs", KEYS[0], lambda target: target.write_bytes(b"data"))
    store.put("graphs", KEYS[8], b"data")
    assert present(store) == [0, 3, 4, 5, 6, 7, 8]


def test_the_limit_holds_at_every_moment(tmp_path):
    store = store_of(tmp_path, 10)
    for number, key in enumerate(KEYS):
        store.put("graphs", key, b"x" * (number % 3 * BLOCK))
        assert store.info().bytes <= store.limit


def test_eight_writers_that_know_nothing_of_each_other_hold_the_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    writers = [store_of(tmp_path, 100) for _ in range(8)]
    for number in range(500):
        writers[number % 8].put("graphs", content_key([str(number)]), b"x")
    assert 75 * BLOCK < writers[0].info().bytes <= 100 * BLOCK


def test_what_is_larger_than_all_is_not_kept(tmp_path):
    store = store_of(tmp_path, 2)
    store.put("graphs", KEYS[0], b"small")
    store.put("graphs", KEYS[1], b"x" * (3 * BLOCK))
    assert present(store) == [0]


def test_a_file_that_cannot_be_kept_is_there_all_the_same(tmp_path):
    path = store_of(tmp_path, 0).file("libraries", KEYS[0], lambda target: target.write_bytes(b"data"), suffix=".so")
    assert path.read_bytes() == b"data"
    assert tmp_path not in path.parents


def test_nothing_is_evicted_while_held_and_it_is_made_up_for(tmp_path):
    holder, writer = store_of(tmp_path, 4), store_of(tmp_path, 4)
    with holder.held():
        for number, key in enumerate(KEYS[:8]):
            (holder if number % 2 else writer).put("graphs", key, b"data")
        assert len(present(writer)) == 8
    assert len(present(writer)) <= 4


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5)), max_size=20), st.integers(0, 300))
def test_as_many_of_the_newest_stay_as_fit(sizes_and_uses, most):
    entries = [Entry(f"{i}", "graphs", size, used) for i, (size, used) in enumerate(sizes_and_uses)]
    evicted = choose_evicted(entries, most)
    kept = [entry for entry in entries if entry not in evicted]
    assert sum(entry.size for entry in kept) <= most
    assert all(old.used <= new.used for old in evicted for new in kept)
    if evicted:
        assert sum(entry.size for entry in [*kept, evicted[-1]]) > most * 7 // 8
