"""The description of the file format, generated from the tables that loading validates with.

Run ``python -m precast.export.serialize.schema_document`` to print it.
"""

from collections.abc import Iterator

from precast.artifact.manifest import FORMAT_VERSION, MANIFEST_SHAPE
from precast.artifact.schema import Anything, Count, ListOf, MapOf, OneOf, Shape, Text
from precast.export.serialize import schema
from precast.export.verifier import ALLOWED_HIGHER_ORDER
from precast.graph.expressions import FUNCTION_NAMES
from precast.graph.signature import InputKind, OutputKind

_INTRODUCTION = """# The file of an exported program

*Written by `python -m precast.export.serialize.schema_document`; a test compares. Do not edit.*

A file is a zip whose members are stored uncompressed, each at a multiple of 64 bytes, so that they can be mapped.

| member | content |
| --- | --- |
| `manifest.json` | format version, and size and SHA-256 of every other member |
| `program.json` | graph, signature, sizes, trees; the table of tensors |
| `weights.safetensors` | parameters and persistent buffers |
| `constants.safetensors` | tensors that the program refers to, and non-persistent buffers |
| `example_inputs.safetensors` | the tensors of the call that was exported |
| `extra_files/…` | texts, UTF-8 |

Members of tensors are left out when empty. A storage that one dense tensor covers has that tensor's dtype and shape;
any other is stored as integers of the widest size that divides it. `tensors` in `program.json` locates each tensor.
"""

_GRAPH = """## Graphs

An input is `[name, value]`. A node is `[name, target, args, kwargs, value, stack, modules]`, without what is empty at
its end; `stack` is a row of `stacks`, `modules` are rows of `modules` (path and class, parted by a zero byte). A node
that reads a subgraph is `[name, {"graph": name}]`. A note is `[node, function, custom]`: what `torch_fn` says of a
node, and the dict that users put on it; nodes of subgraphs have the path of their graph before their name.

**Targets** are `namespace.operator.overload`, `higher_order.name`, or a plain function of sizes such as `operator.mul`.

**Arguments** are JSON numbers, booleans, null and lists for themselves; `"name"` for an earlier node; and tagged:
`{"str": …}`, `{"tuple": […]}`, `{"dict": [[key, value]…]}`, `{"slice": [start, stop, step]}`, `{"float": "nan"}`,
`{"complex": [hex, hex]}`, `{"bytes": hex}`, `{"dtype": …}`, `{"layout": …}`, `{"format": …}`, `{"device": …}`,
`{"ellipsis": true}`, `{"operator": target}`.

**Values** are `[dtype, sizes, strides, requires_grad?, device?]` for tensors, `{"SymInt": expression}`,
`{"SymFloat": …}`, `{"SymBool": …}`, `{"tuple": […]}`, `{"list": […]}`, or `{"constant": argument}`.

**Expressions** over sizes are numbers, names of symbols, or `[function, argument…]`.

**Trees** are `"*"` for a leaf or `[kind, context, children]`, with the kinds `tuple`, `list`, `dict`, `OrderedDict`,
`defaultdict`, `deque`, `namedtuple`, and `class` for one that is registered with torch's pytree.
"""


def schema_document() -> str:
    """The whole document, in Markdown."""
    versions = (schema.__doc__ or "").partition("-----------\n")[2].strip()
    lines = [_INTRODUCTION, "## Versions", "", f"`manifest.json`: version {FORMAT_VERSION}.", "", "`program.json`:", ""]
    lines += [versions, ""]
    assert isinstance(MANIFEST_SHAPE, dict), "the manifest is an object"
    manifest: Shape = {key: MANIFEST_SHAPE[key] for key in ("format", "version", "files")}
    for title, shape in (("manifest.json", manifest), ("program.json", schema.PROGRAM_SHAPE)):
        lines += [f"## {title}", "", "| place | what stands there |", "| --- | --- |", *_rows(shape, ""), ""]
    lines += [_GRAPH, "## Names", ""]
    for what, names in (
        ("Kinds of inputs", [kind.name for kind in InputKind]),
        ("Kinds of outputs", [kind.name for kind in OutputKind]),
        ("Higher-order operators", sorted(ALLOWED_HIGHER_ORDER)),
        ("Functions of sizes", sorted(FUNCTION_NAMES)),
    ):
        lines += [f"**{what}:** " + ", ".join(f"`{name}`" for name in names), ""]
    return "\n".join(lines).rstrip() + "\n"


def _rows(shape: Shape, path: str) -> Iterator[str]:
    if isinstance(shape, dict):
        for key, member in shape.items():
            yield from _rows(member, f"{path}.{key}" if path else key)
        return
    yield f"| `{path}` | {_described(shape)} |"
    if isinstance(shape, ListOf) and not isinstance(shape.members, Anything):
        yield from _rows(shape.members, f"{path}[]")
    elif isinstance(shape, MapOf) and not isinstance(shape.values, Anything):
        yield from _rows(shape.values, f"{path}.*")


def _described(shape: Shape) -> str:
    match shape:
        case Text(pattern):
            return f"text like `{pattern}`".replace("|", "\\|")
        case Count(limit):
            return f"a whole number up to {limit}"
        case ListOf(_, limit):
            return f"a list of at most {limit}"
        case MapOf(keys, _, limit):
            return f"an object of at most {limit} keys like `{keys.pattern}`".replace("|", "\\|")
        case OneOf(shapes):
            return " or ".join(map(_described, shapes))
        case Anything():
            return "see below"
        case dict():
            return "an object"
    return "nothing"


if __name__ == "__main__":
    print(schema_document(), end="")
