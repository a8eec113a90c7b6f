"""One program through torch.export and through Precast: what each records of it, and how what they record behaves."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.export
from torch.utils import _pytree as pytree

import precast.export

PEERS: dict[str, Any] = {"torch": torch.export, "precast": precast.export}
Outcome = dict[str, Any]

WRITES = dict.fromkeys(("operators", "outputs"), "the graph is functional from the start: what is written is a result")
OTHER_CORE = {"operators": "operators that have the tag of the Core ATen set stay whole"}
IDLE = {"operators": "dropout that is turned off is nothing"}
LENIENT = "an argument may be given by name or by position"
STRICT = "dtypes, ranks and constants are checked at each call"

# Checks of what calls have been checked for already, and the detaching of constants that have no history.
_LEFT_OUT = ("aten._assert_tensor_metadata.default", "aten.detach_.default")


@dataclass(frozen=True)
class Case:
    """A module and a call to export it with, what is said of sizes, and further calls of the result.

    ``shapes`` is made with the names of either library (``p.Dim``). ``differs`` names the facts that are told otherwise
    on purpose, with the reason.
    """

    make: Callable[[], torch.nn.Module]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    shapes: Callable[[Any], Any] = lambda p: None
    calls: Sequence[tuple[tuple[Any, ...], dict[str, Any]]] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    decomposed: bool = False
    differs: Mapping[str, str] = field(default_factory=dict)


def module(forward: Callable[..., Any], **state: Any) -> Callable[[], torch.nn.Module]:
    """Makes modules with this forward; tensors are buffers, parameters and modules what they are."""

    def make() -> torch.nn.Module:
        made = type("Made", (torch.nn.Module,), {"forward": forward})()
        for name, value in state.items():
            value = value() if callable(value) and not isinstance(value, torch.nn.Module) else value
            if isinstance(value, torch.Tensor) and not isinstance(value, torch.nn.Parameter):
                made.register_buffer(name, value.clone())
            else:
                setattr(made, name, value)
        return made

    return make


def outcome(library: str, case: Case) -> Outcome:
    """What one of the libraries makes of the case; ``{"error": …}`` where it refuses."""
    peer = PEERS[library]
    torch.manual_seed(0)
    model = case.make()
    args, kwargs = _copied(case.args), _copied(dict(case.kwargs))
    try:
        program = peer.export(model, args, kwargs, dynamic_shapes=case.shapes(peer), **case.options)
        program = program.run_decompositions() if case.decomposed else program
    except Exception as error:  # noqa: BLE001
        return {"error": True, "text": f"{type(error).__name__}: {error}"}
    return {"error": False, **facts(program), "calls": [_called(program, *call) for call in _calls(case)]}


def _calls(case: Case) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    return [(case.args, dict(case.kwargs)), *case.calls]


def _copied(value: Any) -> Any:
    return pytree.tree_map(lambda leaf: leaf.clone() if isinstance(leaf, torch.Tensor) else leaf, value)


def facts(program: Any) -> Outcome:
    """What a user sees in the program."""
    signature = program.graph_signature
    operators = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    return {
        # Torch's graphs keep names that its own graph library reserves.
        "placeholders": [
            "input_1" if node.name == "input" else node.name for node in program.graph.nodes if node.op == "placeholder"
        ],
        "operators": [each for each in operators if each not in _LEFT_OUT],
        "inputs": [(spec.kind.name, spec.target, spec.persistent) for spec in signature.input_specs],
        "outputs": [(spec.kind.name, spec.target) for spec in signature.output_specs],
        # Torch leaves sizes 0 and 1 out where a program asks for them; here it is found out whether they may stay.
        "ranges": sorted(
            f"{each.lower if each.lower > 2 else 0}..{each.upper}" for each in program.range_constraints.values()
        ),
        "state": sorted(program.state_dict),
        "constants": sorted(program.constants),
    }


def _called(program: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    args, kwargs = _copied(args), _copied(kwargs)
    try:
        torch.manual_seed(0)
        result = program.module()(*args, **kwargs)
    except Exception as error:  # noqa: BLE001
        return {"refused": f"{type(error).__name__}: {str(error)[:300]}"}
    return {"result": result, "left": (args, kwargs)}


def differences(case: Case) -> list[str]:
    """What the two libraries make otherwise of the case, but for what is meant to be."""
    theirs, ours = (outcome(library, case) for library in ("torch", "precast"))
    if theirs["error"] or ours["error"]:
        same = theirs["error"] == ours["error"] or "error" in case.differs
        return [] if same else [f"torch: {theirs.get('text', 'exported')}\nprecast: {ours.get('text', 'exported')}"]
    names = [name for name in theirs if name not in ("error", "calls") and name not in case.differs]
    found = [f"{n}:\n  {theirs[n]}\n  {ours[n]}" for n in names if theirs[n] != ours[n]]
    for number, (their, our) in enumerate(zip(theirs["calls"], ours["calls"], strict=True)):
        if f"call {number}" not in case.differs and not _same(their, our):
            found.append(f"call {number}:\n  {their}\n  {our}")
    return found


def _same(left: Any, right: Any) -> bool:
    if left.keys() != right.keys() or "refused" in left:
        return left.keys() == right.keys()
    (left_leaves, left_tree), (right_leaves, right_tree) = map(pytree.tree_flatten, (left, right))
    return left_tree == right_tree and all(map(_same_leaf, left_leaves, right_leaves))


def _same_leaf(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor) and isinstance(right, torch.Tensor):
        same_kind = (left.dtype, left.shape) == (right.dtype, right.shape)
        return same_kind and torch.allclose(left, right, rtol=1e-4, atol=1e-5, equal_nan=True)
    return bool(type(left) is type(right) and left == right)
