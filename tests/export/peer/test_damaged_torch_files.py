"""Damaged and hostile files in PyTorch's format: refused in the one error family, or whole; none keeps us busy."""

import copy
import io
import json
import random
import resource
from pathlib import Path

import pytest
import torch

from precast.artifact.archive import write_members
from precast.errors import ArtifactError
from precast.export import ExportedProgram, load
from tests.export.damage import _STRANGE, RANDOM, members_of, places

STORED = (Path(__file__).parent / "stored" / "torch_2_13.pt2").read_bytes()
MODEL, WEIGHTS = "models/model.json", "data/weights/model_weights_config.json"


def rewritten(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    write_members(file, {name: content for name, content in members.items() if "/." not in name})
    return file.getvalue()


def changed(path: str, change) -> bytes:
    """The file with one of its documents changed."""
    members = members_of(STORED)
    name = next(name for name in members if name.endswith(path))
    document = json.loads(members[name])
    return rewritten({**members, name: json.dumps(change(document) or document).encode()})


def strange(rng: random.Random) -> bytes:
    """The file, zipped anew so that its checksums fit, with one to three changes of its documents."""
    return changed(rng.choice([MODEL, MODEL, MODEL, WEIGHTS]), lambda document: damaged(document, rng))


def damaged(document, rng: random.Random) -> None:
    for _ in range(rng.choice([1, 1, 2, 3])):
        paths = list(places(document))
        *before, last = rng.choice(paths)
        parent = found(document, before)
        match rng.choice(["exchange", "exchange", "drop", "double", "copy", "swap", "count"]):
            case "drop":
                del parent[last]
            case "double" if isinstance(parent, list):
                parent.insert(last, copy.deepcopy(parent[last]))
            case "copy":
                parent[last] = copy.deepcopy(found(document, rng.choice(paths)))
            case "swap" if isinstance(parent, list):
                other = rng.randrange(len(parent))
                parent[last], parent[other] = parent[other], parent[last]
            case "count" if type(parent[last]) is int:
                parent[last] += rng.choice([-1, 1, 3, 2**31, 2**62])
            case _:
                parent[last] = copy.deepcopy(rng.choice([*_STRANGE, *_OF_TORCH]))


_OF_TORCH = [
    "Integer(3)", "2**10**9", "L['x'].size()[0] == 2", "s77", "NaN", float("inf"), {"as_int": 3}, {"as_none": True},
    {"as_tensor": {"name": "x"}}, {"as_name": "x"}, {"as_ints": [1, 2]}, {"as_expr": {"expr_str": "s0", "hint": None}},
]  # fmt: skip


def found(document, path):
    for key in path:
        document = document[key]
    return document


def load_bytes(data: bytes) -> ExportedProgram:
    return load(io.BytesIO(data))


def is_refused(data: bytes) -> bool:
    try:
        load_bytes(data).validate()
    except ArtifactError:
        return True
    return False


def sweep(seed: int, count: int) -> None:
    rng = random.Random(seed)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused = sum(
        is_refused(strange(rng) if number % 4 else rng.choice(RANDOM)(STORED, rng)) for number in range(count)
    )
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 300_000, f"memory grew by {grown} kB"
    assert refused > count * 0.3


@pytest.mark.parametrize("value", [3.5, [3], "aten", {"aten": "x"}, {"aten": None}])
def test_an_opset_that_is_none(value):
    data = changed(MODEL, lambda document: {**document, "opset_version": value})
    with pytest.raises(ArtifactError):
        load(io.BytesIO(data), expected_opset_version={"aten": 10})


def test_the_stored_file_still_loads():
    extra: dict[str, str] = {}
    loaded = load(io.BytesIO(STORED), extra_files=extra)
    options = {"flag": torch.tensor(False), "fill": 3}
    results = loaded.module()(torch.ones(7, 2), options=options)
    torch.testing.assert_close(results["loss"], torch.tensor(2.75))
    assert results["rows"].shape == (7,)
    assert extra == {"why.txt": "kept"}


def test_many_damaged_files():
    sweep(seed=1, count=40)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_hundreds_of_damaged_files(seed):
    sweep(seed, count=300)


def node_calling(target: str, *arguments):
    """The first node of the file, calling something else."""

    def change(document):
        node = document["graph_module"]["graph"]["nodes"][0]
        inputs = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
        node.update(target=target, inputs=inputs)

    return changed(MODEL, change)


@pytest.mark.parametrize(
    "target", ["os.system", "torch.load", "torch.ops.aten.from_file.default", "torch.ops.aten.set_.source_Storage"]
)
def test_nothing_but_operators_of_tensors_is_called(target):
    with pytest.raises(ArtifactError):
        load_bytes(node_calling(target, {"as_string": "echo"}))


@pytest.mark.parametrize(
    "text",
    ["__import__('os').abort()", "().__class__", "(" * 5000, "-" * 15000, "2" * 15000, "10**10**10", "x" * 30_000],
)
def test_expressions_are_no_code(text):
    def change(document):
        document["guards_code"] = [f"{text} == L['x'].size()[0]"]

    with pytest.raises(ArtifactError):
        load_bytes(changed(MODEL, change))


def test_a_defaultdict_imports_nothing():
    def change(document):
        context = {"default_factory_module": "os", "default_factory_name": "abort", "dict_context": ["loss", "rows"]}
        leaf = {"type": None, "context": None, "children_spec": []}
        tree = {"type": "collections.defaultdict", "context": context, "children_spec": [leaf, leaf]}
        document["graph_module"]["module_call_graph"][0]["signature"]["out_spec"] = json.dumps([1, tree])

    loaded = load_bytes(changed(MODEL, change))
    assert loaded.call_spec.out_spec.context[0] is None


def test_a_file_that_would_make_endless_tensors_is_refused():
    def change(document):
        graph = document["graph_module"]["graph"]
        calls = [("aten.ones.default", {"as_ints": [2**40]}, {"as_tensor": {"name": "long"}}),
                 ("aten.unbind.int", {"as_tensor": {"name": "long"}}, {"as_tensors": [{"name": "part"}]})]  # fmt: skip
        graph["nodes"][:0] = [
            {"target": f"torch.ops.{target}", "inputs": [{"name": "", "arg": given, "kind": 1}], "outputs": [made]}
            for target, given, made in calls
        ]

    with pytest.raises(ArtifactError, match="too many tensors"):
        load_bytes(changed(MODEL, change))


def test_a_weight_outside_its_storage_is_refused():
    def change(document):
        document["config"]["weight"]["tensor_meta"]["sizes"] = [{"as_int": 2**40}]

    with pytest.raises(ArtifactError, match="ends outside its storage"):
        load_bytes(changed(WEIGHTS, change))


def test_another_schema_is_refused_by_its_version():
    def change(document):
        document["schema_version"]["major"] = 9

    with pytest.raises(ArtifactError, match="schema version"):
        load_bytes(changed(MODEL, change))
