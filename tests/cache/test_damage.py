import os
import random
import shutil

import pytest

from precast.cache import content_key

DATA = bytes(range(256)) * 3


def only_entry(store):
    (path,) = (path for path in store.directory.rglob("*.*") if path.is_file())
    return path


def replace_by_folder(path):
    path.unlink()
    path.mkdir()
    (path / "inside").write_text("foreign")


def replace_by_link(path):
    target = path.with_name("target")
    path.rename(target)
    path.symlink_to(target)


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


DAMAGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut short": lambda path: path.write_bytes(DATA[:-1]),
    "longer": lambda path: path.write_bytes(DATA + b"\0"),
    "foreign": lambda path: path.write_bytes(b"#!/bin/sh\n"),
    "a folder": replace_by_folder,
    "a link": replace_by_link,
    "a pipe": replace_by_pipe,
    "under another digest": lambda path: path.rename(path.with_name(path.name[:-1] + "x")),
    "without a digest": lambda path: path.rename(path.with_name(path.name.split(".")[0] + ".")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_entry_is_a_miss_with_one_warning_and_goes(store, key, told, damage):
    store.put("graphs", key, DATA)
    damage(only_entry(store))
    assert store.get("graphs", key) is None
    assert store.get("graphs", key) is None
    assert len(told) == 1
    assert "damaged" in str(told[0].message)
    store.put("graphs", key, DATA)
    assert store.get("graphs", key) == DATA


def test_no_flipped_byte_goes_unseen(store, key, told, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    chance = random.Random(0)
    for _ in range(500):
        store.put("graphs", key, DATA)
        path, damaged = only_entry(store), bytearray(DATA)
        damaged[chance.randrange(len(DATA))] ^= chance.randrange(1, 256)
        path.write_bytes(damaged)
        assert store.get("graphs", key) is None
        assert not path.exists()


def test_a_damaged_file_is_made_again(store, key, told):
    store.file("libraries", key, lambda target: target.write_bytes(DATA)).write_bytes(b"")
    again = store.file("libraries", key, lambda target: target.write_bytes(DATA))
    assert again.read_bytes() == DATA
    assert len(told) == 1


def test_an_entry_under_another_key_is_damaged(store, key, told):
    store.put("graphs", key, DATA)
    other = content_key(["another"])
    path = only_entry(store)
    home = path.parent.parent / other[:2]
    home.mkdir()
    shutil.copy(path, home / path.name.replace(key, other))
    assert store.get("graphs", other) is None
    assert store.get("graphs", key) == DATA
    assert len(told) == 1


def test_of_two_results_the_intact_one_serves(store, key, told):
    store.put("graphs", key, b"one")
    damaged = only_entry(store)
    store.put("graphs", key, b"two")
    damaged.write_bytes(b"???")
    assert store.get("graphs", key) == b"two"


def test_an_entry_evicted_between_listing_and_reading_is_a_quiet_miss(store, key, told, monkeypatch):
    store.put("graphs", key, DATA)
    gone = only_entry(store)
    gone.unlink()
    monkeypatch.setattr("precast.cache.store.candidates", lambda *names: [gone])
    assert store.get("graphs", key) is None
    assert not told
