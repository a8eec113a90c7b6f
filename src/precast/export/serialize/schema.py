"""The schema of ``program.json``, and its version numbers.

Version log
-----------
1.0 (2026-11): the first.
1.1 (2026-11): call_numbers, the number of each module's call; float_symbols, data-dependent floats.
1.2 (2026-11): notes, the functions of torch that nodes were, and metadata that users added.

A reader of version 1.x reads every 1.y: minor versions add only what older readers may ignore. Another major version is
refused.
"""

from precast.artifact.schema import ANYTHING, Count, Json, ListOf, MapOf, Shape, Text

FORMAT = "precast-program"
MAJOR, MINOR = 1, 2
MAX_PROGRAM = 512 * 1024 * 1024
PROGRAM = "program.json"
STATE, CONSTANTS, EXAMPLES = "weights", "constants", "example_inputs"
TENSOR_MEMBERS = (STATE, CONSTANTS, EXAMPLES)
EXTRA_FILES = "extra_files/"

_ANY_TEXT = Text(r"(?s).{0,1000000}")
_NAME = Text(r"[^\x00-\x1f]{0,4096}")
_IDENTIFIER = Text(r"[A-Za-z_][A-Za-z0-9_]{0,500}")
_FLAG = ANYTHING
_MANY = 10_000_000

TENSOR_SHAPE: Shape = {
    "storage": _NAME,
    "dtype": Text(r"[a-z0-9_]{1,40}"),
    "shape": ListOf(Count(2**48), 64),
    "strides": ListOf(Count(2**48), 64),
    "offset": Count(2**48),
    "parameter": _FLAG,
    "requires_grad": _FLAG,
    "conjugate": _FLAG,
    "device": Text(r"[a-z]{1,20}(:[0-9]{1,4})?"),
}
SYMBOL_SHAPE: Shape = {
    "symbol": Text(r"[a-z]+[0-9]+"),
    "name": _NAME,
    "seen_at": _NAME,
    "range": ListOf(ANYTHING, 2),
    "example": ANYTHING,
}
GRAPH_SHAPE: Shape = {
    "inputs": ListOf(ListOf(ANYTHING, 2), _MANY),
    "nodes": ListOf(ListOf(ANYTHING, 7), _MANY),
    "outputs": ANYTHING,
    "subgraphs": MapOf(_IDENTIFIER, ANYTHING, 100_000),
}
SIGNATURE_SHAPE: Shape = {
    "inputs": ListOf(ListOf(ANYTHING, 4), _MANY),
    "outputs": ListOf(ListOf(ANYTHING, 3), _MANY),
    "in_tree": ANYTHING,
    "out_tree": ANYTHING,
}
_PROGRAM: dict[str, Shape] = {
    "format": Text(FORMAT),
    "version": ListOf(Count(1_000_000), 2),
    "made_with": MapOf(Text(r"[a-z]{1,20}"), _NAME, 20),
    "opset": MapOf(_IDENTIFIER, Count(1_000_000), 1000),
    "dialect": Text("TRAINING|ATEN"),
    "symbols": ListOf(SYMBOL_SHAPE, 100_000),
    "float_symbols": ListOf(Text(r"zuf[0-9]{1,5}"), 10_000),
    "guards": ListOf({"condition": ANYTHING, "at": ANYTHING}, 1_000_000),
    "graph": GRAPH_SHAPE,
    "stacks": ListOf(_ANY_TEXT, _MANY),
    "modules": ListOf(_ANY_TEXT, _MANY),
    "call_numbers": ListOf(Count(), _MANY),
    "notes": ListOf(ListOf(ANYTHING, 3), _MANY),
    "signature": SIGNATURE_SHAPE,
    "updates": ListOf(Count(), _MANY),
    "argument_names": ListOf(_NAME, 100_000),
    "module_calls": ListOf(ListOf(ANYTHING, 6), _MANY),
    "aliases": ListOf(ListOf(_NAME, 2), _MANY),
    "example_inputs": ANYTHING,
    "tensors": MapOf(_NAME, TENSOR_SHAPE, _MANY),
}
PROGRAM_SHAPE: Shape = _PROGRAM
PROGRAM_KEYS = frozenset(_PROGRAM)
"""The keys that a reader of this version reads; later minor versions may have more."""
ADDED: dict[str, list[Json]] = {"call_numbers": [], "float_symbols": [], "notes": []}
"""Keys that earlier minor versions lack, and their defaults."""
