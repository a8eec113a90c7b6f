"""Control-flow operators whose branches are Python functions, made ready for the tracer.

Before: ``torch.cond(p, lambda x: x + w, lambda x: {"y": x}["y"], (x,))``, where ``w`` is a tensor of the surroundings.
After:  ``cond(p, true_graph, false_graph, (x, w))``: what branches close over is given to them, trees are flat.

Torch leaves this to its bytecode compiler, and calls that by itself unless it believes to run inside it.
"""

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._higher_order_ops.cond import CondOp
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

Surroundings = Callable[[], AbstractContextManager[None]]
"""Makes a context in which tensors of the user's state are known to the tracer."""


@dataclass(frozen=True)
class _Form:
    """Where an operator takes its branches, their operands, and further tensors for them.

    Branches get the operands and then the further tensors. Of ``sliced`` operands they get one row. Results of
    ``with_tree`` branches are any tree.
    """

    branches: tuple[int, ...]
    operands: tuple[int, ...]
    further: int
    sliced: tuple[int, ...] = ()
    with_tree: tuple[int, ...] = ()


_FORMS = {
    "cond": _Form(branches=(1, 2), operands=(), further=3, with_tree=(1, 2)),
    "while_loop": _Form(branches=(0, 1), operands=(2,), further=3, with_tree=(1,)),
    "map_impl": _Form(branches=(0,), operands=(1,), further=2, sliced=(1,), with_tree=(0,)),
    "scan": _Form(branches=(0,), operands=(1, 2), further=3, sliced=(2,), with_tree=(0,)),
}


def is_control_flow(function: object, args: Sequence[Any]) -> bool:
    """Whether this is a call of a control-flow operator with branches that are not graphs yet."""
    if not isinstance(function, torch._ops.HigherOrderOperator) or function._name not in _FORMS:
        return False
    branches = [args[number] for number in _FORMS[function._name].branches if number < len(args)]
    return not any(isinstance(branch, torch.fx.GraphModule) for branch in branches)


def call_control_flow(operator: Any, args: Sequence[Any], kwargs: dict[str, Any], surroundings: Surroundings) -> Any:
    """Call the operator with flat operands, and give its branches all tensors that they close over."""
    form = _FORMS[operator._name]
    arguments = [*args, *kwargs.values()]
    given = arguments[form.further]
    example = [*_examples(arguments, form), *given]
    branches = {number: _Branch(arguments[number], surroundings) for number in form.branches}
    free = list({id(tensor): tensor for b in branches.values() for tensor in b.free_tensors(example)}.values())
    for number, branch in branches.items():
        arguments[number] = branch.lifted(free, flat=number in form.with_tree)
    arguments[form.further] = (*given, *free)
    results = operator(*arguments)
    trees = [branches[number].out_tree for number in form.with_tree]
    return results if not trees or trees[-1] is None else pytree.tree_unflatten(list(results), trees[-1])


def _examples(arguments: Sequence[Any], form: _Form) -> list[Any]:
    with disable_proxy_modes_tracing():
        return [value[0] if number in form.sliced else value for number in form.operands for value in arguments[number]]


class _Branch:
    """One branch: a Python function of flat operands. ``out_tree`` is known once it ran."""

    def __init__(self, function: Callable[..., Any], surroundings: Surroundings) -> None:
        self._function = function
        self._surroundings = surroundings
        self.out_tree: pytree.TreeSpec | None = None

    def free_tensors(self, example: Sequence[Any]) -> list[torch.Tensor]:
        """Run once, unrecorded, and note the tensors that come from outside."""
        noting = _FreeTensors(example)
        with disable_proxy_modes_tracing(), torch.no_grad(), noting, self._surroundings():
            noting.note(self._function(*example))
        return noting.free

    def lifted(self, free: Sequence[torch.Tensor], *, flat: bool) -> Callable[..., Any]:
        """A function that takes the free tensors as its last arguments, and gives flat results if asked to."""

        def run(*args: Any) -> Any:
            given, further = args[: len(args) - len(free)], args[len(args) - len(free) :]
            exchange = _Exchange(dict(zip(map(id, free), further, strict=True)))
            with exchange, self._surroundings():
                result = self._function(*given)
            leaves, tree = pytree.tree_flatten(exchange.exchanged(result))
            if flat:
                self.out_tree = tree
            return tuple(leaves) if flat else pytree.tree_unflatten(leaves, tree)

        return run


class _FreeTensors(TorchFunctionMode):
    """Notes tensors that were neither given nor made since."""

    def __init__(self, known: Sequence[Any]) -> None:
        super().__init__()
        # Kept alive, so that ids stay their own.
        self._known = {id(value): value for value in known if isinstance(value, torch.Tensor)}
        self.free: list[torch.Tensor] = []

    def note(self, values: Any) -> None:
        for leaf in pytree.tree_leaves(values):
            if isinstance(leaf, torch.Tensor) and id(leaf) not in self._known:
                self._known[id(leaf)] = leaf
                self.free.append(leaf)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.note((args, kwargs))
        result = func(*args, **(kwargs or {}))
        self._known |= {id(leaf): leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        return result


class _Exchange(TorchFunctionMode):
    """Gives torch functions other tensors in place of some, by identity."""

    def __init__(self, tensors: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors

    def exchanged(self, values: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, lambda tensor: self._tensors.get(id(tensor), tensor), values)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = self.exchanged((args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def without_bytecode_compiler() -> Iterator[None]:
    """While active, control-flow functions called on this thread hand their operators over to us at once."""
    thread = threading.get_ident()
    original = torch.compiler.is_dynamo_compiling

    def is_dynamo_compiling() -> bool:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        ours = threading.get_ident() == thread and caller.startswith("torch._higher_order_ops.")
        return ours or original()

    call: Callable[..., Any] = CondOp.__call__

    def call_flat(operator: CondOp, predicate: Any, true_function: Any, false_function: Any, operands: Any) -> Any:
        """``torch.cond`` takes trees of operands, its operator does not."""
        flat, tree = pytree.tree_flatten(tuple(operands))
        if len(flat) == len(operands):
            return call(operator, predicate, true_function, false_function, operands)
        return call(operator, predicate, _on_tree(true_function, tree), _on_tree(false_function, tree), tuple(flat))

    flat_cond = patch.object(CondOp, "__call__", call_flat)
    with patch.object(torch.compiler, "is_dynamo_compiling", is_dynamo_compiling), flat_cond:
        yield


def _on_tree(function: Callable[..., Any], tree: pytree.TreeSpec) -> Callable[..., Any]:
    return lambda *flat: function(*pytree.tree_unflatten(list(flat), tree))
