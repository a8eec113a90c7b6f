"""Creates the optimizer state that a first step would create, so that a program can take it as input.

Before: ``optimizer.state == {}``, and ``step()`` makes ``exp_avg`` and ``step`` when it first updates a parameter
After:  ``optimizer.state[p] == {"step": 0, "exp_avg": zeros, …}``, with which the first step has the same result

The initial values are not guessed: small parameters are stepped with and without them, and must stay equal.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.training.numbers import Counted

PLACES = ("param_groups", "state", "defaults")
"""Attributes of every optimizer."""
_SMALL = 3


def check_optimizer(optimizer: object) -> None:
    """Refuse what is not a torch optimizer, and optimizers that depend on a closure's result."""
    if not isinstance(optimizer, Optimizer):
        raise InputTypeError(
            f"train_step() was given an object of type {type(optimizer).__name__} as optimizer.",
            why="the step of a torch.optim.Optimizer is traced",
            fix="Pass torch.optim.AdamW(model.parameters()), or an optimizer of a class derived from Optimizer.",
        )
    if _needs_closure(optimizer):
        raise InputValueError(
            f"{type(optimizer).__name__} calls a closure in its steps.",
            why="how often depends on the loss, but a program does the same in each step",
            fix="Train with precast.compile(model) and a loop of your own, which may pass a closure.",
        )
    parameters = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for name, value in vars(optimizer).items():
        leaves = [] if name in PLACES else pytree.tree_leaves(value)
        if any(isinstance(each, Optimizer) or id(each) in parameters for each in leaves):
            raise InputValueError(
                f"{type(optimizer).__name__} keeps an optimizer or parameters in its attribute {name!r}.",
                why="this cannot be observed when its steps are tried on small parameters",
                fix="Derive the optimizer from the inner one, and call super().step().",
            )


def _needs_closure(optimizer: Optimizer) -> bool:
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def add_initial_state(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> bool:
    """Create the state of parameters that have none; returns whether steps with it equal those without.

    If not (as for momentum with dampening), nothing is changed, and the first step must run without it.
    """
    missing = [parameter for parameter in parameters if not optimizer.state.get(parameter)]
    if not missing:
        return True
    small = _small_copy(optimizer)
    names = _names_after_a_step(small)
    if not _starts_alike(small, names) or _has_sizes_of_its_own(optimizer, names):
        return False
    _fill(optimizer, missing, names)
    return True


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether elements of a parameter are updated independently, so that a shard is updated like the whole."""
    small = _small_copy(optimizer)
    for group in small.param_groups:
        group["params"] = [torch.nn.Parameter(torch.linspace(-1, 1, 2 * _SMALL))]
    whole, parts = _second(small), _second(small)
    for group in parts.param_groups:
        group["params"] = [torch.nn.Parameter(part.clone()) for part in group["params"][0].detach().chunk(2)]
    for seed in range(3):
        _step(whole, seed)
        for one, other in zip(whole.param_groups, parts.param_groups, strict=True):
            for parameter, gradient in zip(other["params"], one["params"][0].grad.chunk(2), strict=True):
                parameter.grad = gradient.clone()
        type(parts).step(parts)
    pairs = zip(whole.param_groups, parts.param_groups, strict=True)
    return all(torch.equal(one["params"][0], torch.cat(other["params"])) for one, other in pairs)


def _small_copy(optimizer: Optimizer) -> Optimizer:
    """An optimizer with the same settings over one small parameter of each rank and dtype in a group."""
    small = _shallow_copy(optimizer)
    small.state = type(optimizer.state)(dict)
    small.param_groups = []
    generator = torch.Generator().manual_seed(0)
    for group in optimizer.param_groups:
        kinds = {(parameter.dim(), parameter.dtype) for parameter in group["params"]}
        made = [
            torch.nn.Parameter(torch.randn(_small_shape(rank), generator=generator).to(dtype))
            for rank, dtype in sorted(kinds, key=str)
        ]
        others = {name: copy.copy(value) for name, value in group.items() if name != "params"}
        small.param_groups.append({**others, "params": made})
    _fill_from_constructor(optimizer, small)
    return small


def _small_shape(rank: int) -> torch.Size:
    """Distinct sizes, which identify state of another shape than the parameter's."""
    return torch.Size(range(_SMALL, _SMALL + rank))


def _shallow_copy(optimizer: Optimizer) -> Optimizer:
    """A copy with its own attributes and tensors; ``copy.copy`` omits attributes of derived classes."""
    made: Optimizer = object.__new__(type(optimizer))
    for name, value in vars(optimizer).items():
        made.__dict__[name] = value if name in PLACES else pytree.tree_map_only(torch.Tensor, torch.clone, value)
    return made


def _fill_from_constructor(optimizer: Optimizer, small: Optimizer) -> None:
    """For optimizers that create state in their constructor (Adagrad), create it for small parameters too."""
    for group, made in zip(optimizer.param_groups, small.param_groups, strict=True):
        for parameter in made["params"]:
            model = next((each for each in group["params"] if _is_like(each, parameter)), None)
            if model is None:
                continue
            for name, value in optimizer.state.get(model, {}).items():
                small.state[parameter][name] = _like(value, model, parameter)


def _is_like(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dim() == other.dim() and one.dtype == other.dtype


def _like(value: Any, parameter: torch.Tensor, small: torch.Tensor) -> Any:
    """A value of a parameter's state, resized for another parameter if it has the parameter's shape."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or not value.numel():
        return copy.deepcopy(value)
    return torch.full_like(small, float(value.flatten()[0]), dtype=value.dtype, requires_grad=False)


Names = Mapping[tuple[int, int, torch.dtype], Mapping[str, Any]]
"""The state of a parameter by its group, rank and dtype: names, with a small parameter's values."""


def _names_after_a_step(small: Optimizer) -> Names:
    """The state of each kind of parameter after a step."""
    optimizer = _second(small)
    _step(optimizer, seed=0)
    return {
        (number, each.dim(), each.dtype): {
            name: _start_of(value) for name, value in optimizer.state.get(each, {}).items()
        }
        for number, group in enumerate(optimizer.param_groups)
        for each in group["params"]
        if each in optimizer.state
    }


def _has_sizes_of_its_own(optimizer: Optimizer, names: Names) -> bool:
    """Whether state has neither its parameter's shape nor a single element, so that only a step can create it."""
    tensors = [
        (start.shape, _small_shape(rank))
        for (_, rank, _), starts in names.items()
        for start in starts.values()
        if isinstance(start, torch.Tensor)
    ]
    return not hasattr(optimizer, "_init_group") and any(found.numel() > 1 and found != own for found, own in tensors)


def _start_of(value: Any) -> Any:
    """A state's possible initial value: zeros, or the number zero; None if it is a copy of anything else."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value, requires_grad=False)
    return type(value)(0) if type(value) in (int, float) else value


def counted_by(optimizer: Optimizer) -> Counted:
    """The Python numbers that the optimizer's steps change; refuses other values that change."""
    small = _second(_small_copy(optimizer))
    seen = [_plain_values(small)]
    for seed in range(3):
        _try_step(small, seed)
        seen.append(_plain_values(small))
    changing = {key for one, other in pairwise(seen) for key, value in other.items() if one.get(key, value) != value}
    # A flag that only the first step changes is not a counter.
    later = {key for one, other in pairwise(seen[1:]) for key, value in other.items() if one.get(key, value) != value}
    changing = {key for key in changing if key in later or key[0] != "attribute" or key[2] in (int, float)}
    for _, name, kind in changing:
        if kind not in (int, float):
            raise InputValueError(
                f"{type(optimizer).__name__} changes {name!r}, a {kind.__name__}, in its steps.",
                why="a program updates tensors and numbers; anything else would keep its traced value",
                fix="Let the optimizer keep it as a tensor or a number, as those of torch do with their step.",
            )
    groups = frozenset((place, name) for place, name, _ in changing if isinstance(place, int))
    states = frozenset(name for place, name, _ in changing if place == "state")
    return Counted(groups, states, frozenset(name for place, name, _ in changing if place == "attribute"))


def _try_step(small: Optimizer, seed: int) -> None:
    try:
        _step(small, seed)
    except RuntimeError as error:
        raise InputValueError(
            f"{type(small).__name__} fails where it steps small parameters with dense gradients: {error}",
            why="a step is tried so before it is compiled, and its gradients are dense, those of embeddings too",
            fix="Take another optimizer (Adam for SparseAdam), or train with precast.compile and a loop of your own.",
        ) from error


_PlainValue = tuple[int | str, str, type]


def _plain_values(optimizer: Optimizer) -> dict[_PlainValue, Any]:
    """Values of groups by their position, and the values of all states by name, as lists."""
    found: dict[_PlainValue, Any] = {
        (number, name, type(value)): value
        for number, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if name != "params" and not isinstance(value, torch.Tensor)
    }
    for state in optimizer.state.values():
        for name, value in state.items():
            if isinstance(value, bool | int | float | str | tuple):
                found.setdefault(("state", name, type(value)), []).append(value)
    own = {name: value for name, value in vars(optimizer).items() if isinstance(value, bool | int | float | str)}
    # Schedules read whether there was a step, which train_step sets.
    return found | {("attribute", name, type(value)): value for name, value in own.items() if name != "_opt_called"}


def _starts_alike(small: Optimizer, names: Names) -> bool:
    """Whether two steps from created state equal those without it."""
    from_nothing, from_state = _second(small), _second(small)
    _fill(from_state, [each for group in from_state.param_groups for each in group["params"]], names)
    for seed in range(3):
        _step(from_nothing, seed)
        _step(from_state, seed)
    return all(map(_are_equal, _tensors(from_nothing), _tensors(from_state)))


def _tensors(optimizer: Optimizer) -> list[Any]:
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    return [*parameters, *(optimizer.state[each].get(name) for each in parameters for name in
                           sorted(optimizer.state[each]))]  # fmt: skip


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.shape == other.shape and one.dtype == other.dtype and bool((one == other).all())
    return bool(one == other)


def _second(small: Optimizer) -> Optimizer:
    """The same optimizer over clones of its parameters."""
    made = _shallow_copy(small)
    clones = {id(each): torch.nn.Parameter(each.detach().clone()) for group in small.param_groups
              for each in group["params"]}  # fmt: skip
    made.state = type(small.state)(dict)
    for parameter, state in small.state.items():
        made.state[clones[id(parameter)]] = copy.deepcopy(state)
    made.param_groups = [
        {
            **{name: _own(value) for name, value in group.items()},
            "params": [clones[id(each)] for each in group["params"]],
        }
        for group in small.param_groups
    ]
    return made


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _step(optimizer: Optimizer, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)
    type(optimizer).step(optimizer)


def _fill(optimizer: Optimizer, parameters: Sequence[torch.Tensor], names: Names) -> None:
    """Run torch's own initializer, if there is one; state that it does not create is zero."""
    wanted = set(map(id, parameters))
    for number, group in enumerate(optimizer.param_groups):
        chosen = [each for each in group["params"] if id(each) in wanted]
        if chosen:
            _initialize(optimizer, {**group, "params": chosen})
        for parameter in chosen:
            small = torch.empty(_small_shape(parameter.dim()))
            starts = names.get((number, parameter.dim(), parameter.dtype))
            if starts is None:
                continue
            # A step expects a state to exist, though it may be empty.
            state = optimizer.state.setdefault(parameter, {})
            for name, start in starts.items():
                if state.get(name) is None:
                    state[name] = _like(start, small, parameter)


def _initialize(optimizer: Optimizer, group: dict[str, Any]) -> None:
    initialize = getattr(optimizer, "_init_group", None)
    if initialize is None:
        return
    # It reads which parameters have gradients; these are broadcast, and take no memory.
    before = [parameter.grad for parameter in group["params"]]
    for parameter in group["params"]:
        parameter.grad = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
    try:
        lists = list(inspect.signature(initialize).parameters)[1:]
        initialize(group, *([] for _ in lists))
    finally:
        for parameter, gradient in zip(group["params"], before, strict=True):
            parameter.grad = gradient
