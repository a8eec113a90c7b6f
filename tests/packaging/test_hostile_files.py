"""Bad and hostile packages: always an ``ArtifactError``, before code of the file runs, never a huge allocation."""

import io
import json
import random
import resource
import struct
import zipfile
from itertools import pairwise

import pytest
import torch

import precast
import precast.runtime
from precast.artifact.archive import write_archive, write_members
from precast.artifact.package import MANIFEST, WEIGHTS, file_record, open_package
from precast.errors import ArtifactError
from precast.runtime import load as load_model

CODE = "native/native/model.so"
DEEP = "[" * 5000 + "]" * 5000


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    class Shifted(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x, *, shift=1.5):
            self.count += 1
            return {"y": self.layer(x) + shift, "rows": x.shape[0]}

    shapes = {"x": {0: precast.Dim("rows", min=1, max=8)}, "shift": None}
    target = tmp_path_factory.mktemp("hostile") / "model.precast"
    return precast.package(Shifted(), (torch.randn(4, 3),), {"shift": 1.5}, path=target, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def members(path):
    return {name: bytes(data) for name, data in open_package(path).members.items()}


@pytest.fixture
def never_loads_code(monkeypatch):
    monkeypatch.setitem(load_model.__globals__, "load_library_bytes", lambda *_, **__: pytest.fail("code was loaded"))


def archive(members):
    file = io.BytesIO()
    write_members(file, members)
    return file.getvalue()


def with_manifest(members, change, *, rehash=False):
    """The file with a manifest that was tampered with, hashes of the other members put right on demand."""
    manifest = json.loads(members[MANIFEST])
    change(manifest)
    if rehash:
        manifest["files"] = {name: file_record(data)._asdict() for name, data in members.items() if name != MANIFEST}
    return archive({**members, MANIFEST: json.dumps(manifest).encode()})


def entry_of(manifest):
    return manifest["entries"][0]


STRANGER = {"symbol": "s99", "name": "s99", "seen_at": "nowhere", "range": [0, None]}


def symbol_of(manifest):
    return entry_of(manifest)["call"]["symbols"][0]["symbol"]


def guarded_by(manifest, condition):
    entry_of(manifest)["call"]["guards"] = [{"condition": ["Lt", condition, 5], "at": None}]


def tower(inner):
    for _ in range(30):
        inner = ["Pow", inner, 60]
    return inner


LIES = {
    "input shape": lambda m: entry_of(m)["interface"]["inputs"][0].update(shape=[800, 3]),
    "input dtype": lambda m: entry_of(m)["interface"]["inputs"][0].update(dtype="f64"),
    "output shape": lambda m: entry_of(m)["interface"]["outputs"][0].update(shape=[1, 1], strides=[1, 1]),
    "output count": lambda m: entry_of(m)["interface"]["outputs"].clear(),
    "entry name": lambda m: entry_of(m)["interface"].update(name="other"),
    "call shape": lambda m: entry_of(m)["call"]["leaves"][0]["tensor"].update(shape=["s9", 3]),
    "call fixed size": lambda m: entry_of(m)["call"]["leaves"][0]["tensor"]["shape"].__setitem__(1, 4),
    "call rank": lambda m: entry_of(m)["call"]["leaves"][0]["tensor"].update(shape=[3]),
    "call dtype": lambda m: entry_of(m)["call"]["leaves"][0]["tensor"].update(dtype="f64"),
    "call without leaves": lambda m: entry_of(m)["call"]["leaves"].clear(),
    "call results": lambda m: entry_of(m)["call"]["results"].append({"output": 0}),
    "call output number": lambda m: entry_of(m)["call"]["results"].__setitem__(0, {"output": 99}),
    "call updates a constant": lambda m: entry_of(m)["call"].update(updates=[[0, 1]]),
    "call updates nothing": lambda m: entry_of(m)["call"].update(updates=[[0]]),
    "call tree": lambda m: entry_of(m)["call"].update(in_tree="*"),
    "deep tree": lambda m: entry_of(m)["call"].update(out_tree=json.loads(DEEP[:300] + DEEP[-300:])),
    "class in a tree": lambda m: entry_of(m)["call"].update(out_tree=["class", ["os:system"], ["*", "*"]]),
    "range": lambda m: entry_of(m)["call"]["symbols"][0].update(range=[5, 2]),
    "number that is a tensor": lambda m: entry_of(m)["call"].update(
        results=[{"number": each["output"]} if "output" in each else each for each in entry_of(m)["call"]["results"]]
    ),
    "number of no output": lambda m: entry_of(m)["call"].update(
        results=[{"number": 99} if "output" in each else each for each in entry_of(m)["call"]["results"]]
    ),
    "guard": lambda m: entry_of(m)["call"].update(guards=[{"condition": ["exec", "s0"], "at": None}]),
    "guard symbol": lambda m: entry_of(m)["call"].update(guards=[{"condition": ["Eq", "zz", 1], "at": None}]),
    "constant": lambda m: entry_of(m)["call"]["leaves"].__setitem__(1, {"constant": {"pickle": "gASVIAAA"}}),
    "state shape": lambda m: m["state"]["layer.weight"].update(shape=[2, 30]),
    "state offset": lambda m: m["state"]["layer.weight"].update(offset=1000),
    "state strides": lambda m: m["state"]["layer.weight"].update(strides=[10**6, 1]),
    "state rank": lambda m: m["state"]["layer.weight"].update(strides=[1]),
    "state dtype": lambda m: m["state"]["layer.weight"].update(dtype="i32"),
    "state storage": lambda m: m["state"]["layer.weight"].update(storage="other"),
    "state missing": lambda m: m["state"].pop("layer.weight"),
    "target twice": lambda m: m["targets"].append(m["targets"][0]),
    "target file": lambda m: m["targets"][0].update(file="native/other/model.so"),
    "target without file": lambda m: m["targets"][0].update(file=None),
    "target is the program": lambda m: m["targets"][0].update(file="program.json"),
    "target path": lambda m: m["targets"][0].update(file="../../etc/passwd"),
    "library": lambda m: m.update(libraries=["libevil.so"]),
    "library path": lambda m: m.update(libraries=["/tmp/libdnnl.so.3"]),
    "file size": lambda m: m["files"][CODE].update(size=2**40),
    "file hash": lambda m: m["files"][CODE].update(sha256="0" * 64),
    "file missing": lambda m: m["files"].pop(CODE),
    "more files": lambda m: m["files"].update({"extra": {"size": 1, "sha256": "0" * 64}}) or m["targets"].clear(),
    "no entries": lambda m: m.update(entries=[]),
    "version": lambda m: m.update(version=4),
    "version kind": lambda m: m.update(version=[2]),
    "keys": lambda m: m.update(more=1),
    "huge tolerance": lambda m: entry_of(m)["samples"][0]["outputs"][0].update(tolerance=10**400),
    "huge empty state": lambda m: m["state"]["layer.weight"].update(shape=[0, 2**48, 2**48], strides=[1, 1, 1]),
    "expanded state": lambda m: m["state"]["layer.weight"].update(shape=[2**48, 2**48], strides=[0, 0]),
    "shift in a guard": lambda m: guarded_by(m, ["LShift", 1, ["Mul", symbol_of(m), 10**12]]),
    "power in a guard": lambda m: guarded_by(m, ["Pow", 2, ["Pow", 2, symbol_of(m)]]),
    "tower in a size": lambda m: entry_of(m)["call"]["results"].__setitem__(1, {"size": tower(symbol_of(m))}),
    "long deque": lambda m: entry_of(m)["call"].update(out_tree=["deque", 1, ["*", "*"]]),
    "fields of a named tuple": lambda m: entry_of(m)["call"].update(
        out_tree=["namedtuple", ["a:b", ["x", "x"]], ["*"] * 2]
    ),
    "size of nobody": lambda m: (
        entry_of(m)["call"]["symbols"].append(STRANGER)
        or entry_of(m)["call"]["results"].__setitem__(1, {"size": "s99"})
    ),
    "two entries": lambda m: m["entries"].append(m["entries"][0]),
}


@pytest.mark.parametrize("allow_native", [True, False])
def test_state_that_repeats_its_elements_takes_no_memory(members, allow_native):
    """Four tebibytes, of one number: nothing is written out, and what cannot be computed is an error of ours."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def expand(manifest):
        manifest["state"]["more"] = {**manifest["state"]["layer.bias"], "shape": [2**40], "strides": [0]}

    model = precast.runtime.load(with_manifest(members, expand), allow_native=allow_native)
    assert model(torch.ones(4, 3), shift=1.5)["rows"] == 4
    model.verify()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000


def test_sizes_with_huge_numbers_are_answered_at_once(members):
    def guard(manifest):
        guarded_by(manifest, ["Pow", ["Mul", symbol_of(manifest), 2**100], 20])

    model = precast.runtime.load(with_manifest(members, guard))
    with pytest.raises(precast.errors.InputValueError, match="does not hold"):
        model(torch.ones(4, 3), shift=1.5)


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused(members, lie):
    with pytest.raises(ArtifactError):
        precast.runtime.load(with_manifest(members, LIES[lie]))


ABOUT_CODE = {"target is the program", "target without file", "library", "library path", "file hash", "file size"}
HARMLESS = {"input shape", "output shape", "entry name", "state dtype"} | ABOUT_CODE


@pytest.mark.usefixtures("never_loads_code")
@pytest.mark.parametrize("lie", sorted(LIES.keys()))
def test_a_manifest_that_lies_is_refused_or_harmless_without_native_code(members, lie):
    try:
        model = precast.runtime.load(with_manifest(members, LIES[lie]), allow_native=False)
    except ArtifactError:
        return
    assert lie in HARMLESS
    assert next(iter(model.entries)) in ("forward", "other")


@pytest.mark.usefixtures("never_loads_code")
@pytest.mark.parametrize("name", [CODE, MANIFEST])
def test_every_flipped_bit_in_code_or_manifest_is_found_before_code_is_loaded(members, name):
    generator = random.Random(0)
    for _ in range(60):
        changed = bytearray(members[name])
        changed[generator.randrange(len(changed))] ^= 1 << generator.randrange(8)
        try:
            precast.runtime.load(archive({**members, name: bytes(changed)}))
        except ArtifactError:
            continue
        except pytest.fail.Exception:
            # A manifest may say something else that is as true, e.g. in a name nobody reads; code may not.
            assert name == MANIFEST


@pytest.mark.usefixtures("never_loads_code")
def test_code_of_another_file_is_refused(members, tmp_path):
    other = precast.package(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path / "other.precast")
    code = bytes(open_package(other).members[CODE])
    with pytest.raises(ArtifactError, match=r"SHA-256|bytes"):
        precast.runtime.load(archive({**members, CODE: code}))


def test_code_of_another_file_with_its_hash_is_refused_before_it_is_called(members, tmp_path):
    other = precast.package(torch.nn.ReLU(), (torch.ones(2),), path=tmp_path / "other.precast")
    changed = {**members, CODE: bytes(open_package(other).members[CODE])}
    with pytest.raises(ArtifactError, match="describes other entries"):
        precast.runtime.load(with_manifest(changed, lambda _: None, rehash=True))


def test_what_is_no_library_is_refused_even_with_its_hash(members):
    with pytest.raises(ArtifactError, match="cannot be loaded"):
        precast.runtime.load(with_manifest({**members, CODE: b"\x7fELF" * 100}, lambda _: None, rehash=True))


@pytest.mark.usefixtures("never_loads_code")
def test_swapped_members_are_refused(members):
    names = [name for name in members if name != MANIFEST]
    for first, second in pairwise(names):
        swapped = {**members, first: members[second], second: members[first]}
        try:
            precast.runtime.load(archive(swapped), check_weights=True)
        except ArtifactError:
            continue
        pytest.fail(f"{first} and {second} were swapped, and nobody noticed")


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.5, 0.9, 0.99, 0.9999])
@pytest.mark.usefixtures("never_loads_code")
def test_cut_files_are_refused(path, part):
    data = path.read_bytes()
    with pytest.raises(ArtifactError):
        precast.runtime.load(data[: int(len(data) * part)])


@pytest.mark.usefixtures("never_loads_code")
@pytest.mark.parametrize("allow_native", [True, False])
def test_zip_bombs_are_refused_without_unpacking(allow_native):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr(MANIFEST, b"[" * 300_000_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ArtifactError, match="compressed"):
        precast.runtime.load(file.getvalue(), allow_native=allow_native)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000


@pytest.mark.usefixtures("never_loads_code")
@pytest.mark.parametrize(
    "text", [DEEP, '{"a":' * 5000 + "1" + "}" * 5000, '"' + "x" * 10_000_000 + '"', "1" * 5_000_000, "null", ""]
)
def test_strange_json_is_refused(members, text):
    for name in (MANIFEST, "program.json"):
        changed = {**members, name: text.encode()}
        data = archive(changed) if name == MANIFEST else with_manifest(changed, lambda _: None, rehash=True)
        with pytest.raises(ArtifactError):
            precast.runtime.load(data, allow_native=False)


def header(**records):
    text = json.dumps(records).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    "weights",
    [
        b"",
        b"\xff" * 100,
        header(),
        header(**{"layer.weight": {"dtype": "F32", "shape": [2**30, 2**30], "data_offsets": [0, 2**62]}}),
        header(**{"layer.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}) + bytes(24),
    ],
)
@pytest.mark.usefixtures("never_loads_code")
def test_weights_that_do_not_fit_the_state_are_refused(members, weights):
    with pytest.raises(ArtifactError):
        precast.runtime.load(
            with_manifest({**members, WEIGHTS: weights}, lambda _: None, rehash=True), allow_native=False
        )


@pytest.mark.slow
def test_random_damage_gives_the_model_or_the_error(path):
    data, generator = path.read_bytes(), random.Random(1)
    for _ in range(400):
        damaged = bytearray(data)
        for _ in range(generator.randrange(1, 5)):
            damaged[generator.randrange(len(damaged))] ^= 1 << generator.randrange(8)
        if generator.random() < 0.2:
            damaged = damaged[: generator.randrange(len(damaged))]
        try:
            model = precast.runtime.load(bytes(damaged), allow_native=generator.random() < 0.5)
            model.verify()
        except ArtifactError:
            continue


def test_names_outside_the_folder_cannot_be_written_or_read(members, tmp_path):
    with pytest.raises(AssertionError):
        write_archive(tmp_path / "m.precast", {**members, "../evil": b""})
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as evil:
        evil.writestr("../evil", b"")
    with pytest.raises(ArtifactError, match="not a plain relative path"):
        precast.runtime.load(file.getvalue())


def test_files_of_other_kinds_are_told_as_such(tmp_path):
    torch.save(torch.nn.Linear(2, 2).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ArtifactError, match=r"written by torch\.save"):
        precast.runtime.load(tmp_path / "weights.pt")
    with pytest.raises(ArtifactError, match=r"shared library(.|\n)*precast\.aot_load"):
        precast.runtime.load(b"\x7fELF" + bytes(200))


def test_what_is_no_file_is_refused():
    with pytest.raises(precast.errors.InputTypeError, match="was given an object of type int"):
        precast.runtime.load(3)
    for threads in (0, -1, 1.5, "two"):
        with pytest.raises(precast.errors.InputValueError, match="threads cannot be"):
            precast.runtime.load(b"", threads=threads)
