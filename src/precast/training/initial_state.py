"""Gives an optimizer the state that its first step would make, so that a program can take it as input.

Before: ``optimizer.state == {}``, and ``step()`` makes ``exp_avg`` and ``step`` when it first meets a parameter
After:  ``optimizer.state[p] == {"step": 0, "exp_avg": zeros, …}``, from which the first step goes as from nothing

What a state starts from is not guessed: small parameters are stepped from nothing and from it, and must stay equal.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from precast.errors import InputTypeError, InputValueError

_SMALL = 3


def check_optimizer(optimizer: object) -> None:
    """Refuse what is no optimizer of torch's, or runs code of the user's around its steps."""
    if not isinstance(optimizer, Optimizer):
        raise InputTypeError(
            f"train_step() was given a {type(optimizer).__name__} as optimizer.",
            why="the step of a torch.optim.Optimizer is traced",
            fix="Pass torch.optim.AdamW(model.parameters()), or an optimizer of a class derived from Optimizer.",
        )
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise InputValueError(
            "The optimizer has hooks around its steps.",
            why="a hook would run once, when the step is traced, and never again",
            fix="Remove the hooks, and do what they do before or after step(batch).",
        )


def add_initial_state(optimizer: Optimizer, parameters: Sequence[torch.Tensor]) -> bool:
    """Make the state of parameters that have none; tells whether steps from it are those from nothing.

    If not (momentum with dampening is one such), nothing is changed, and the first step is to be made as it is.
    """
    missing = [parameter for parameter in parameters if not optimizer.state.get(parameter)]
    if not missing:
        return True
    small = _small_copy(optimizer)
    names = _names_after_a_step(small)
    if not _starts_alike(small, names):
        return False
    _fill(optimizer, missing, names)
    return True


def is_elementwise(optimizer: Optimizer) -> bool:
    """Whether elements of a parameter are updated each on its own, so that parts of one are updated as the whole is."""
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
    """An optimizer of the same settings over one small parameter of each rank and type that a group has."""
    small = copy.copy(optimizer)
    small.state = type(optimizer.state)(dict)
    small.param_groups = []
    generator = torch.Generator().manual_seed(0)
    for group in optimizer.param_groups:
        kinds = {(parameter.dim(), parameter.dtype) for parameter in group["params"]}
        made = [
            torch.nn.Parameter(torch.randn((_SMALL,) * rank, generator=generator).to(dtype))
            for rank, dtype in sorted(kinds, key=str)
        ]
        others = {name: copy.copy(value) for name, value in group.items() if name != "params"}
        small.param_groups.append({**others, "params": made})
    _fill_from_constructor(optimizer, small)
    return small


def _fill_from_constructor(optimizer: Optimizer, small: Optimizer) -> None:
    """Optimizers that make state in their constructor (Adagrad) find it made for small parameters too."""
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
    """A value of a parameter's state, for another parameter: as large as that where it was as large as its own."""
    if not isinstance(value, torch.Tensor) or value.shape != parameter.shape or not value.numel():
        return copy.deepcopy(value)
    return torch.full_like(small, float(value.flatten()[0]), dtype=value.dtype, requires_grad=False)


Names = Mapping[tuple[int, int, torch.dtype], Sequence[str]]
"""What the state of a parameter holds, by its group, rank and type."""


def _names_after_a_step(small: Optimizer) -> Names:
    """What the state of each kind of parameter holds after a step; refuses state that is no tensor and changes."""
    optimizer = _second(small)
    before = _plain_values(optimizer)
    _step(optimizer, seed=0)
    names = {
        (number, each.dim(), each.dtype): tuple(optimizer.state.get(each, ()))
        for number, group in enumerate(optimizer.param_groups)
        for each in group["params"]
    }
    after_one = _plain_values(optimizer)
    _step(optimizer, seed=1)
    after_two = _plain_values(optimizer)
    changing = [name for name, value in after_two.items() if after_one.get(name, value) != value]
    changing += [name for name, value in before.items() if after_one.get(name, value) != value]
    if changing:
        raise InputValueError(
            f"{type(optimizer).__name__} counts {changing[0]!r} in Python.",
            why="a program updates tensors; a Python number would stay what it was when the step was traced",
            fix="Let the optimizer keep it as a tensor, as those of torch do with their step.",
        )
    return names


def _plain_values(optimizer: Optimizer) -> dict[str, Any]:
    found = {f"group {i}: {name}": value for i, group in enumerate(optimizer.param_groups)
             for name, value in group.items() if name != "params" and not isinstance(value, torch.Tensor)}  # fmt: skip
    for number, state in enumerate(optimizer.state.values()):
        found |= {f"{name} of parameter {number}": value for name, value in state.items() if _is_plain(value)}
    return found


def _is_plain(value: Any) -> bool:
    return isinstance(value, bool | int | float | str | tuple)


def _starts_alike(small: Optimizer, names: Names) -> bool:
    """Whether two steps from made-up state are those from nothing."""
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
    """The same over clones of its parameters."""
    made = copy.copy(small)
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
    """Torch's own initializer where there is one; what it leaves out, or where there is none, is zero."""
    wanted = set(map(id, parameters))
    for number, group in enumerate(optimizer.param_groups):
        chosen = [each for each in group["params"] if id(each) in wanted]
        if chosen:
            _initialize(optimizer, {**group, "params": chosen})
        for parameter in chosen:
            for name in names[number, parameter.dim(), parameter.dtype]:
                if optimizer.state[parameter].get(name) is None:
                    optimizer.state[parameter][name] = torch.zeros_like(parameter, requires_grad=False)


def _initialize(optimizer: Optimizer, group: dict[str, Any]) -> None:
    initialize = getattr(optimizer, "_init_group", None)
    if initialize is None:
        return
    # It looks at which parameters have gradients, of no size in memory here.
    before = [parameter.grad for parameter in group["params"]]
    for parameter in group["params"]:
        parameter.grad = torch.zeros((), dtype=parameter.dtype, device=parameter.device).expand(parameter.shape)
    try:
        lists = list(inspect.signature(initialize).parameters)[1:]
        initialize(group, *([] for _ in lists))
    finally:
        for parameter, gradient in zip(group["params"], before, strict=True):
            parameter.grad = gradient
