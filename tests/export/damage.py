"""Ways to damage a file: at random in its bytes, or on purpose in its content with hashes that fit again."""

import hashlib
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable, Iterator

from precast.artifact.archive import write_members

Damage = Callable[[bytes, random.Random], bytes]


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 1, 8, 64])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def truncate(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def cut_out(data: bytes, rng: random.Random) -> bytes:
    start, stop = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:start] + data[stop:]


def repeat_part(data: bytes, rng: random.Random) -> bytes:
    start, stop = sorted(rng.randrange(len(data)) for _ in range(2))
    return data[:stop] + data[start:stop] + data[stop:]


def overwrite(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data))
    return data[:start] + rng.randbytes(rng.randrange(1, 200)) + data[start + 100 :]


def large_numbers(data: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(data) - 8)
    return data[:start] + struct.pack("<Q", rng.choice([2**64 - 1, 2**63, 2**32, 2**31 - 1])) + data[start + 8 :]


RANDOM: list[Damage] = [flip_bits, truncate, cut_out, repeat_part, overwrite, large_numbers]


def members_of(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def resealed(members: dict[str, bytes]) -> bytes:
    """A file of these members whose manifest fits them: only their content can tell that something is wrong."""
    manifest = json.loads(members["manifest.json"])
    manifest["files"] = {
        name: {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in members.items()
        if name != "manifest.json"
    }
    file = io.BytesIO()
    write_members(file, {**members, "manifest.json": json.dumps(manifest).encode()})
    return file.getvalue()


def with_program(data: bytes, program: object) -> bytes:
    return resealed({**members_of(data), "program.json": json.dumps(program).encode()})


_STRANGE = [
    None, True, -1, 0, 1.5, 2**40, 2**70, 10**400, "", "x", "../x", "__import__('os')", "aten.add.Tensor", [], {},
    [[]], {"a": 1}, ["*"], {"tuple": []}, {"str": "x"}, {"dtype": "float33"}, {"device": "gpu"}, ["Add", "s0", 1],
    {"tensor": 1}, [None] * 20, "lambda", "aten.exit.default", "prim.rpc_async.default", {"graph": "x"},
]  # fmt: skip


def places(value: object, path: tuple[object, ...] = ()) -> Iterator[tuple[object, ...]]:
    """The path of everything in a JSON value."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


def strange_program(data: bytes, rng: random.Random) -> bytes:
    """One thing somewhere in ``program.json`` exchanged, dropped or doubled, with hashes that fit."""
    program = json.loads(members_of(data)["program.json"])
    *before, last = rng.choice(list(places(program)))
    parent = program
    for key in before:
        parent = parent[key]
    action = rng.choice(["exchange", "exchange", "exchange", "drop", "double"])
    if action == "drop":
        del parent[last]
    elif action == "double" and isinstance(parent, list):
        parent.insert(last, parent[last])
    else:
        parent[last] = rng.choice(_STRANGE)
    return with_program(data, program)


def swapped_members(data: bytes, rng: random.Random) -> bytes:
    members = members_of(data)
    first, second = rng.sample(sorted(members), 2)
    members[first], members[second] = members[second], members[first]
    file = io.BytesIO()
    write_members(file, members)
    return file.getvalue()


def missing_member(data: bytes, rng: random.Random) -> bytes:
    members = members_of(data)
    del members[rng.choice(sorted(members))]
    file = io.BytesIO()
    write_members(file, members)
    return file.getvalue()


ON_PURPOSE: list[Damage] = [strange_program, strange_program, strange_program, swapped_members, missing_member]
