import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from precast.cache import Store, content_key

HEADER = "import os, random, sys, time; from pathlib import Path; from precast.cache import Store, content_key\n"
# Everyone puts, gets, and evicts the same few entries; the small limit keeps eviction busy.
WORKER = """
os.fsync = lambda descriptor: None
store, chance = Store(Path(sys.argv[1]), limit=20 * 4096), random.Random(int(sys.argv[2]))
hits = 0
for _ in range(150):
    number = chance.randrange(40)
    key, expected = content_key([str(number)]), str(number).encode() * 1000
    found = store.get("graphs", key)
    assert found in (None, expected), found
    hits += found is not None
    with store.held():
        path = store.file("graphs", key, lambda target: target.write_bytes(expected))
        assert path.read_bytes() == expected
    if number == 0:
        store.clear()
print(hits)
"""
SLOW_WRITER = """
def never(descriptor):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = never
Store(Path(sys.argv[1]), limit=2**20).put("graphs", content_key(["a key"]), b"data")
"""


def start(code, *arguments):
    command = [sys.executable, "-W", "error", "-c", HEADER + code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_sixteen_processes_get_what_was_put_or_nothing(tmp_path):
    workers = [start(WORKER, tmp_path / "cache", number) for number in range(16)]
    ended = [worker.communicate() for worker in workers]
    assert [worker.returncode for worker in workers] == [0] * 16, ended
    assert sum(int(output) for output, _ in ended) > 0
    store = Store(tmp_path / "cache", limit=20 * 4096)
    store.put("graphs", content_key(["last"]), b"data")
    assert store.info().bytes <= store.limit
    assert not list((tmp_path / "cache").rglob("partial/*"))


def test_threads_share_one_store(store):
    def work(number):
        key, expected = content_key([str(number % 7)]), str(number % 7).encode()
        store.put("graphs", key, expected)
        return store.get("graphs", key) == expected

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(200)))
    assert store.info().entries == 7


def test_a_killed_writer_leaves_nothing_broken(store, key, told):
    writer = start(SLOW_WRITER, store.directory)
    assert writer.stdout.readline() == "writing\n"
    writer.kill()
    writer.communicate()
    assert len(list(store.directory.rglob("partial/*"))) == 1
    assert store.get("graphs", key) is None
    store.put("graphs", key, b"data")
    assert store.get("graphs", key) == b"data"
    assert not list(store.directory.rglob("partial/*"))
    assert not told


def test_what_a_living_writer_is_at_is_left_alone(store, key):
    writer = start(SLOW_WRITER, store.directory)
    assert writer.stdout.readline() == "writing\n"
    store.put("graphs", content_key(["another"]), b"data")
    assert len(list(store.directory.rglob("partial/*"))) == 1
    writer.kill()
    writer.communicate()


def test_a_forked_child_leaves_its_parents_files(tmp_path):
    code = """
store = Store(Path(sys.argv[1]), limit=0)
path = store.file("libraries", content_key(["a"]), lambda target: target.write_bytes(b"data"))
if (child := os.fork()) == 0:
    sys.exit()
os.waitpid(child, 0)
assert path.exists()
print(path)
"""
    process = start(code, tmp_path)
    output, problems = process.communicate()
    assert process.returncode == 0, problems
    deadline = time.monotonic() + 5
    while (tmp_path / output.strip()).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not (tmp_path / output.strip()).exists()
