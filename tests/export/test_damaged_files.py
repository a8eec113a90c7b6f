"""Damaged and hostile files: always the one error family, nothing half-loaded, memory bounded, no hang."""

import io
import json
import os
import random
import resource
import signal
import time
import zipfile
from pathlib import Path

import pytest
import torch

from precast.errors import ArtifactError, MissingFileError
from precast.export import ExportedProgram, export, load, save
from tests.export.damage import ON_PURPOSE, RANDOM, members_of, resealed, with_program

STORED = (Path(__file__).parent / "stored" / "version_1_0.pt2").read_bytes()


def load_bytes(data: bytes) -> ExportedProgram:
    return load(io.BytesIO(data))


def program() -> dict:
    return json.loads(members_of(STORED)["program.json"])


def assert_refused_or_whole(data: bytes) -> bool:
    """Whether it was refused; a file that is accepted must give a program that holds together."""
    try:
        loaded = load_bytes(data)
    except ArtifactError:
        return True
    loaded.validate()
    return False


def sweep(seed: int, count: int) -> None:
    rng = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = 0
    for number in range(count):
        damage = rng.choice(RANDOM if number % 2 else ON_PURPOSE)
        refused += assert_refused_or_whole(damage(STORED, rng))
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000, f"memory grew by {grown} kB"
    assert refused > count * 0.5


def test_hundreds_of_damaged_files():
    sweep(seed=1, count=300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_thousands_of_damaged_files(seed):
    sweep(seed, count=500)


def test_every_flipped_byte_of_the_weights_is_seen():
    content = members_of(STORED)["weights.safetensors"]
    start = STORED.index(content)
    for position in range(start, start + len(content)):
        with pytest.raises(ArtifactError):
            load_bytes(STORED[:position] + bytes([STORED[position] ^ 1]) + STORED[position + 1 :])


@pytest.mark.parametrize("data", [b"", b"PK", b"not a zip at all" * 100])
def test_what_is_no_archive(data):
    with pytest.raises(ArtifactError, match="not a Precast archive"):
        load_bytes(data)


def test_a_missing_or_empty_path(tmp_path):
    with pytest.raises(MissingFileError, match="cannot be read") as caught:
        load(tmp_path / "nothing.pt2")
    assert isinstance(caught.value, FileNotFoundError)
    (tmp_path / "empty.pt2").touch()
    with pytest.raises(ArtifactError, match="cannot be read"):
        load(tmp_path / "empty.pt2")


def test_a_zip_bomb():
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("program.json", b"0" * 50_000_000)
    with pytest.raises(ArtifactError, match="compressed"):
        load_bytes(file.getvalue())


@pytest.mark.parametrize("name", ["../evil.txt", "/etc/passwd", "a\\b", "extra_files/../../x"])
def test_path_tricks(name):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(name, b"")
    with pytest.raises(ArtifactError, match="plain relative path"):
        load_bytes(file.getvalue())


def test_deep_json():
    deep = b"[" * 200_000 + b"]" * 200_000
    with pytest.raises(ArtifactError):
        load_bytes(resealed({**members_of(STORED), "program.json": deep}))


def test_a_deep_tree_and_a_deep_expression():
    tree: object = "*"
    expression: object = "s0"
    for _ in range(300):
        tree, expression = ["tuple", [], [tree]], ["Add", expression, 1]
    changed = program()
    changed["signature"]["in_tree"] = tree
    with pytest.raises(ArtifactError):
        load_bytes(with_program(STORED, changed))
    changed = program()
    changed["guards"] = [{"condition": expression, "at": None}]
    with pytest.raises(ArtifactError):
        load_bytes(with_program(STORED, changed))


@pytest.mark.parametrize("base", [10, "s0"])
def test_huge_numbers_are_not_computed(base):
    power: object = ["Pow", 2, 60]
    for _ in range(20):
        power = ["Pow", power, 60]
    for bomb in (["Pow", base, 10**12], ["LShift", 1, 10**12], power):
        changed = program()
        changed["symbols"][0]["symbol"] = "s0"
        changed["guards"] = [{"condition": bomb, "at": None}]
        with pytest.raises(ArtifactError):
            load_bytes(with_program(STORED, changed))


def test_another_major_version():
    changed = program() | {"version": [2, 0]}
    with pytest.raises(ArtifactError, match=r"format version \[2, 0\]"):
        load_bytes(with_program(STORED, changed))


def test_a_later_minor_version_may_say_more():
    changed = program() | {"version": [1, 7], "colour": "blue"}
    assert load_bytes(with_program(STORED, changed)).dialect == "TRAINING"


def test_an_unknown_dtype_operator_and_function():
    for old, new, told in [
        ('"float32"', '"float33"', "float33"),
        ('"aten.mul.Tensor"', '"aten.moo.Tensor"', "aten.moo.Tensor"),
        ('"aten.mul.Tensor"', '"os.system"', "not the name of an operator"),
        ('"higher_order.cond"', '"higher_order.print"', "no place"),
    ]:
        changed = json.loads(json.dumps(program()).replace(old, new))
        with pytest.raises(ArtifactError, match=told):
            load_bytes(with_program(STORED, changed))


@pytest.mark.parametrize("name", ["aten.save.default", "aten.from_file.default", "debugprims.load_tensor.default"])
def test_operators_that_reach_for_files_are_refused(name):
    changed = json.loads(json.dumps(program()).replace('"aten.mul.Tensor"', f'"{name}"'))
    with pytest.raises(ArtifactError, match="might reach beyond"):
        load_bytes(with_program(STORED, changed))


def test_absurd_sizes_allocate_nothing():
    changed = program()
    changed["tensors"]["weights/weight"] |= {"shape": [2**40], "strides": [1]}
    with pytest.raises(ArtifactError, match="ends outside its storage"):
        load_bytes(with_program(STORED, changed))


def test_names_are_no_code():
    changed = json.loads(json.dumps(program()).replace('"mul"', '"mul=__import__(1)"'))
    with pytest.raises(ArtifactError, match="cannot name a node"):
        load_bytes(with_program(STORED, changed))


@pytest.mark.parametrize("place", ["target", "alias", "fqn", "module"])
def test_names_of_state_and_submodules_are_no_code(place):
    evil = 'weight"), __import__("os").abort(), ("'
    changed = program()
    if place == "target":
        changed["signature"]["inputs"][0][2] = evil
    elif place == "alias":
        changed["aliases"] = [[evil, "weight"]]
    elif place == "fqn":
        changed["module_calls"][0] = [evil]
    else:
        changed["modules"][0] = f"{evil}\0Stored"
    with pytest.raises(ArtifactError, match="cannot name state or a submodule"):
        load_bytes(with_program(STORED, changed))


def test_names_of_arguments_are_no_code():
    changed = program()
    changed["argument_names"] = ["x=__import__('os').abort()", "options"]
    loaded = load_bytes(with_program(STORED, changed))
    args, kwargs = loaded.example_inputs
    torch.testing.assert_close(loaded.module()(*args, **kwargs)["loss"], torch.tensor(2.75))


def kill_writers(folder: Path, count: int) -> None:
    """Fork writers of one path and kill each at a random moment: what is at the path must be whole each time."""
    path, rng = folder / "program.pt2", random.Random(0)
    exported = export(torch.nn.Linear(200, 200), (torch.ones(1, 200),))
    save(exported, path)
    for _ in range(count):
        writer = os.fork()
        if writer == 0:
            while True:
                save(exported, path)
        time.sleep(rng.random() * 0.02)
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)
        assert str(load(path)) == str(exported)
    leftovers = [name for name in os.listdir(folder) if name != path.name]
    assert all(name.startswith(".") for name in leftovers), "only hidden partial files may stay behind"


def test_a_killed_writer_leaves_whole_files(tmp_path):
    kill_writers(tmp_path, count=20)


@pytest.mark.slow
def test_many_killed_writers_leave_whole_files(tmp_path):
    kill_writers(tmp_path, count=200)
