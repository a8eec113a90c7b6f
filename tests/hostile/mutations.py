"""Files that mean it: programs and manifests changed on purpose, with hashes that fit again."""

import json
import random
from collections.abc import Callable
from typing import Any

import torch

from precast.ops.operators_in_files import may_be_called_by_files
from tests.export.damage import RANDOM, members_of, places, resealed

Json = Any
NUMBERS = (
    -1, 0, 1, 2, 3, 7, 64, 65, 2**16, 2**31 - 1, 2**31, 2**32, 2**40, 2**48, 2**61, 2**62, 2**63 - 1, 2**63, 2**64,
    2**70, 10**40, 10**400, -(2**62), -(2**63), 0.5, -1.5, 1e308,
)  # fmt: skip
TEXTS = (
    "", "x", "*", "class", "self", "forward", "training", "__init__", "conv1'", 'a"b', "a\\b", "a\nb", "🙂", "[/x]",
    "x" * 5000, "../x", "__import__('os').abort()", "s0", "s9", "u0", "lambda", "None", "True",
    "aten.add.Tensor", "f32", "float32",
)  # fmt: skip
VALUES = (
    None, True, False, [], {}, [[]], {"a": 1}, ["*"], [None] * 20, {"tuple": []}, {"str": "x"}, {"float": "nan"},
    {"float": "1e400"}, {"complex": ["nan", "inf"]}, {"complex": ["nan"]}, {"dtype": "complex128"}, {"dtype": "x"},
    {"device": "meta"}, {"device": "cuda:99"}, {"layout": "sparse_coo"}, {"format": "channels_last"},
    {"ellipsis": True}, {"slice": [0, 2**62, -1]}, {"bytes": "00"}, {"bytes": "xyz"},
    {"operator": "aten.add.Tensor"}, {"graph": "x"},
    {"dict": [[{"str": "a"}, 1]]}, {"dict": [[[], 1]]}, {"SymInt": "s0"}, {"constant": 1},
)  # fmt: skip
FUNCTIONS = (
    "Add", "Mul", "Pow", "PowByNatural", "FloatPow", "Mod", "PythonMod", "FloorDiv", "CleanDiv", "CeilDiv", "LShift",
    "RShift", "Max", "Min", "And", "Or", "Not", "Eq", "Equality", "Ne", "Lt", "StrictLessThan", "Le", "Gt", "Ge",
    "Where", "Piecewise", "ExprCondPair", "floor", "ceiling", "ModularIndexing", "RoundDecimal", "RoundToInt",
    "ToFloat", "TruncToInt", "IntTrueDiv", "FloatTrueDiv", "IsNonOverlappingAndDenseIndicator", "Identity", "exec",
)  # fmt: skip
_NAMES = sorted({schema.name.replace("::", ".") for schema in torch._C._jit_get_all_schemas()})
_ALLOWED = [name for name in _NAMES if may_be_called_by_files(*name.split(".", 1))]


def expression(rng: random.Random, depth: int = 0) -> Json:
    """An expression over sizes that somebody means."""
    kind = rng.randrange(8)
    if depth > 6 or kind == 0:
        return rng.choice([*NUMBERS, "s0", "s1", "s2", "s77", "u0"])
    if kind == 1:
        return ["Rational", rng.choice(NUMBERS), rng.choice(NUMBERS)]
    if kind == 2:
        return rng.choice(
            [["int_oo"], ["-int_oo"], ["true"], ["false"], ["Float", rng.choice(["inf", "nan", "0x1.8p+1", "x"])]]
        )
    if kind == 3:
        inner = expression(rng, depth + 1)
        times = rng.choice([1, 2, 5, 10, 30, 60])
        for _ in range(times):
            others = [2, 3, 60, 64, -64, "s0", ["Rational", 1, 3], inner if times <= 10 else 5]
            inner = [rng.choice(["Pow", "Mul", "LShift", "Add", "FloorDiv", "Max"]), inner, rng.choice(others)]
        return inner
    arguments = [expression(rng, depth + 1) for _ in range(rng.choice([1, 2, 2, 2, 3, 4]))]
    if depth == 0 and rng.random() < 0.05:
        arguments *= 300
    return [rng.choice(FUNCTIONS), *arguments]


def operator_name(rng: random.Random) -> str:
    name = rng.choice(_NAMES if rng.random() < 0.3 else _ALLOWED)
    packet = getattr(getattr(torch.ops, name.partition(".")[0]), name.partition(".")[2].partition(".")[0], None)
    overloads = packet.overloads() if isinstance(packet, torch._ops.OpOverloadPacket) else ["default"]
    return f"{name}.{rng.choice(overloads)}"


def anything(rng: random.Random, old: Json) -> Json:
    """Something else in the place of what is there, often of the same kind."""
    if isinstance(old, (int, float)) and not isinstance(old, bool) and rng.random() < 0.6:
        return rng.choice(NUMBERS)
    if isinstance(old, str) and rng.random() < 0.6:
        return operator_name(rng) if old.count(".") >= 2 and rng.random() < 0.8 else rng.choice(TEXTS)
    if rng.random() < 0.3:
        return expression(rng)
    return rng.choice([*VALUES, *NUMBERS, *TEXTS])


def mutated(content: Json, rng: random.Random) -> Json:
    """A copy with one to four places exchanged, dropped, doubled or swapped."""
    content = json.loads(json.dumps(content))
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        known = list(places(content))
        if not known:
            break
        *before, last = rng.choice(known)
        parent = content
        for key in before:
            parent = parent[key]
        action = rng.random()
        if action < 0.08:
            del parent[last]
        elif action < 0.14 and isinstance(parent, list):
            parent.insert(last, parent[last])
        elif action < 0.2 and isinstance(parent, list):
            rng.shuffle(parent)
        elif action < 0.25 and isinstance(parent, dict):
            parent[rng.choice(TEXTS)] = parent.pop(last)
        else:
            parent[last] = anything(rng, parent[last])
    return content


def with_expressions(content: Json, rng: random.Random) -> Json:
    """A copy with hostile expressions where sizes and conditions are."""
    content = json.loads(json.dumps(content))
    spots = [
        path for path in places(content) if path[-1] in ("condition", "shape", "strides", "SymInt", "size", "range")
    ]
    for path in rng.sample(spots, min(len(spots), rng.choice([1, 2, 3]))):
        parent = content
        for key in path[:-1]:
            parent = parent[key]
        old = parent[path[-1]]
        if isinstance(old, list) and path[-1] in ("shape", "strides", "range"):
            if old:
                old[rng.randrange(len(old))] = expression(rng) if rng.random() < 0.7 else rng.choice(NUMBERS)
        else:
            parent[path[-1]] = expression(rng)
    return content


def with_operators(content: Json, rng: random.Random) -> Json:
    """A copy that calls other operators, with its own arguments or with some changed."""
    content = json.loads(json.dumps(content))
    nodes = [node for node in content["graph"]["nodes"] if len(node) > 2 and isinstance(node[1], str)]
    for node in rng.sample(nodes, min(len(nodes), rng.choice([1, 1, 2]))):
        node[1] = operator_name(rng)
        for position in range(len(node[2])):
            if rng.random() < 0.4:
                node[2][position] = anything(rng, node[2][position])
        if rng.random() < 0.3:
            node[2].append(rng.choice([*NUMBERS[:12], [1, 2], [0], *[each[0] for each in nodes]]))
    return content


def hostile_file(data: bytes, rng: random.Random) -> bytes:
    """A file that was changed in its bytes, its program, its manifest, or its weights' header."""
    kind = rng.random()
    if kind < 0.12:
        return rng.choice(RANDOM)(data, rng)
    members = members_of(data)
    if kind < 0.2:
        names = [name for name in members if name.endswith(".safetensors")]
        name = rng.choice(names)
        length = 8 + int.from_bytes(members[name][:8], "little")
        header = mutated(json.loads(members[name][8:length]), rng)
        text = json.dumps(header).encode()
        members[name] = len(text).to_bytes(8, "little") + text + members[name][length:]
        return resealed(members)
    programs = [name for name in members if name.startswith("program")]
    has_entries = bool(json.loads(members["manifest.json"]).get("entries"))
    name = "manifest.json" if kind < 0.55 and has_entries else rng.choice(programs)
    changes: list[Callable[[Json, random.Random], Json]] = [mutated, mutated, with_expressions]
    if name in programs:
        changes += [with_operators, with_operators]
    changed = rng.choice(changes)(json.loads(members[name]), rng)
    try:
        members[name] = json.dumps(changed).encode()
        return resealed(members)
    except (TypeError, AttributeError, KeyError, AssertionError):
        return data[: rng.randrange(len(data))]
