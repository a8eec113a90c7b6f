"""One training step as a module: its parameters and buffers are all the state that a step reads and updates.

Before: ``model``, ``optimizer`` and a loop that calls ``zero_grad``, ``backward``, ``clip_grad_norm_`` and ``step``
After:  ``StepModule(...)(batch) -> loss`` over the state ``model.*``, ``optimizer.state.*`` and ``optimizer.groups.*``
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from precast.errors import InputTypeError, InputValueError
from precast.training.dense_embeddings import dense_embeddings
from precast.training.loss_boundary import only_a_loss
from precast.training.numbers import NOTHING_COUNTED, Counted, GroupNumber, Number, optimizers_numbers, state_numbers
from precast.training.placement import ONE_PROCESS, Gradients, Placement
from precast.training.rebound_state import rebound_in_place
from precast.training.skipping import are_finite

LossFunction = Callable[[torch.nn.Module, Any], Any]


@dataclass(frozen=True)
class StepSettings:
    """What happens between the gradients and the update.

    ``moving`` are group settings that are state, since schedules change them; ``counted`` are the numbers that
    the optimizer changes itself.
    """

    grad_clip: float | None = None
    accumulate: int = 1
    skip_nonfinite: bool = False
    memory_budget: float | None = None
    moving: frozenset[tuple[int, str]] = frozenset()
    counted: Counted = NOTHING_COUNTED
    placement: Placement = ONE_PROCESS


@dataclass(frozen=True)
class _Plan:
    loss_fn: LossFunction
    optimizer: Optimizer
    settings: StepSettings


class StepModule(torch.nn.Module):
    """Runs one step of ``optimizer`` on ``loss_fn(model, batch)``: plain torch, to be traced or called directly.

    With ``skip_nonfinite`` it also returns whether the step counts; the caller undoes one that does not.
    """

    _plan: _Plan

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        optimizer: Optimizer,
        settings: StepSettings,
        skipped: torch.Tensor,
    ) -> None:
        super().__init__()
        self.model = model
        # Not a submodule: an optimizer is not state, and a loss function may be a module of its own.
        self.__dict__["_plan"] = _Plan(loss_fn, optimizer, settings)
        # A trace finds and restores what it wrote to Python's state from these.
        self.__dict__["_users"] = loss_fn, optimizer
        self.numbers = optimizers_numbers(optimizer, settings.moving, settings.counted)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.optimizer = torch.nn.Module()
        for position, parameter in enumerate(parameters_of(optimizer)):
            name = names.get(id(parameter))
            if name is None:
                name = f"shards.{position}"
                _put(self.optimizer, f"shards.{position}", parameter)
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor):
                    _put(self.optimizer, f"state.{name}.{key}", value)
            self.numbers += state_numbers(optimizer, parameter, name, settings.counted)
        for number in self.numbers:
            value = torch.tensor(float(number.read(optimizer)), dtype=torch.float64)
            _put(self.optimizer, number.path, value)
        for position, group in enumerate(optimizer.param_groups):
            for name, value in group.items():
                if isinstance(value, torch.Tensor):
                    _put(self.optimizer, f"groups.{position}.{name}", value)
        for name, value in vars(optimizer).items():
            if isinstance(value, torch.Tensor):
                _put(self.optimizer, f"attributes.{name}", value)
        if settings.memory_budget is not None:
            _put(self.optimizer, "tangent", torch.ones(()))
        if settings.skip_nonfinite:
            _put(self.optimizer, "skipped", skipped)

    def forward(self, batch: Any) -> Any:
        optimizer, settings = self._plan.optimizer, self._plan.settings
        trained = [each for each in parameters_of(optimizer) if each.requires_grad]
        placement = settings.placement
        (loss, *auxiliary), gradients = self._gradients(batch, trained)
        loss, gradients = placement.reduce(loss, gradients)
        result = (loss, *auxiliary) if auxiliary else loss
        with torch.no_grad():
            self._update(trained, gradients)
            placement.publish(trained)
            if not settings.skip_nonfinite:
                return result
            is_finite = placement.all_finite(are_finite(loss, gradients))
            self.optimizer.get_buffer("skipped").add_(is_finite.logical_not())
        return result, is_finite

    def _gradients(self, batch: Any, trained: Sequence[torch.Tensor]) -> tuple[Any, Gradients]:
        """The loss function's results over all micro-batches, and the mean of their gradients."""
        loss_fn, count, placement = self._plan.loss_fn, self._plan.settings.accumulate, self._plan.settings.placement
        with torch.no_grad():
            whole = placement.whole(trained)
        total: Gradients = [None] * len(whole)
        results = []
        for part in _micro_batches(batch, count):
            with torch.enable_grad():
                with (
                    placement.saving(trained, whole),
                    _exchanged(self.model, placement.replaced(whole)),
                    dense_embeddings(),
                    only_a_loss(self._plan.optimizer, part),
                ):
                    loss, auxiliary = _loss_of(loss_fn(self.model, part))
                scaled = loss if count == 1 else loss / count
                found = torch.autograd.grad(scaled, whole, self._tangent(loss), allow_unused=True)
            # A loss function may have called backward() itself.
            left = _taken_gradients(whole)
            for gradients in (found, left):
                total = [_sum(one, other) for one, other in zip(total, gradients, strict=True)]
            results.append(pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, (loss, *auxiliary)))
        return (results[0] if count == 1 else _joined(results)), total

    def _tangent(self, loss: torch.Tensor) -> torch.Tensor | None:
        """The tangent of the loss, if a pass must find it in the graph; otherwise it is one."""
        if self._plan.settings.memory_budget is None:
            return None
        return self.optimizer.get_buffer("tangent").to(loss.dtype).expand(loss.shape)

    def _update(self, trained: Sequence[torch.Tensor], gradients: Gradients) -> None:
        optimizer, settings = self._plan.optimizer, self._plan.settings
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient
        try:
            with rebound_in_place(optimizer), self._numbers_of_state(optimizer):
                if settings.grad_clip is not None:
                    settings.placement.clip(trained, settings.grad_clip)
                type(optimizer).step(optimizer)
        finally:
            for parameter in trained:
                parameter.grad = None

    @contextmanager
    def _numbers_of_state(self, optimizer: Optimizer) -> Iterator[None]:
        """While active, groups hold the values of the state: symbols, during a trace."""
        before = [number.read(optimizer) for number in self.numbers]
        # The same objects are put back: what is merely equal would count as written by the step.
        settings = [
            each.setting(optimizer) for each in self.numbers if isinstance(each, GroupNumber) and not each.counts
        ]
        for number, known in zip(self.numbers, before, strict=True):
            value = self.optimizer.get_buffer(number.path).item()
            if not number.counts and number.name != "lr":
                # Optimizers skip what a zero makes superfluous; a program is specialized for either case.
                torch._check(value == 0 if known == 0 else value != 0)
            number.write(optimizer, int(value) if type(value) is float and isinstance(known, int) else value)
        try:
            yield
            for number in self.numbers:
                if number.counts:
                    self._keep(number, number.read(optimizer))
        finally:
            for number, value in zip(self.numbers, before, strict=True):
                if number.counts and isinstance(number.read(optimizer), torch.SymFloat):
                    number.write(optimizer, value)
            for group, name, value in settings:
                group[name] = value

    def _keep(self, number: Number, value: Any) -> None:
        """Store a counter's new value."""
        buffer = self.optimizer.get_buffer(number.path)
        buffer.copy_(torch.scalar_tensor(value, dtype=buffer.dtype))


@contextmanager
def _exchanged(model: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> Iterator[None]:
    """While active, the model's parameters are replaced by these tensors."""
    with ExitStack() as stack:
        for name, tensor in tensors.items():
            folder, _, last = name.rpartition(".")
            owner = model.get_submodule(folder)
            stack.callback(owner._parameters.__setitem__, last, owner._parameters[last])
            owner._parameters[last] = tensor  # type: ignore[assignment]
        yield


class EvalModule(torch.nn.Module):
    """The loss function's results for a model, without gradients."""

    _loss_fn: LossFunction

    def __init__(self, model: torch.nn.Module, loss_fn: LossFunction) -> None:
        super().__init__()
        self.model = model
        self.__dict__["_loss_fn"] = loss_fn

    def forward(self, batch: Any) -> Any:
        with torch.no_grad():
            result = self._loss_fn(self.model, batch)
        return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, result)


def parameters_of(optimizer: Optimizer) -> list[torch.Tensor]:
    """All parameters in the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _put(root: torch.nn.Module, path: str, value: torch.Tensor) -> None:
    """Register a tensor under a dotted path, creating modules on the way; any name works, even that of a method."""
    *folders, name = path.split(".")
    for folder in folders:
        root = root._modules.setdefault(folder, torch.nn.Module()) or root
    if isinstance(value, torch.nn.Parameter):
        root._parameters[name] = value
    else:
        root._buffers[name] = value


def _loss_of(result: Any) -> tuple[torch.Tensor, tuple[Any, ...]]:
    """The loss, and the other results."""
    loss, auxiliary = (result[0], result[1:]) if isinstance(result, tuple) and len(result) == 2 else (result, ())
    if not isinstance(loss, torch.Tensor):
        raise InputTypeError(
            f"The loss function returned an object of type {type(loss).__name__}.",
            why="a step computes the gradients of one number",
            fix="Return loss, or (loss, aux), with loss a tensor of one element.",
        )
    if loss.numel() != 1 or not loss.requires_grad:
        found = f"of shape {tuple(loss.shape)}" if loss.numel() != 1 else "that depends on no parameter"
        raise InputValueError(
            f"The loss function returned a tensor {found} as loss.",
            why="a step computes the gradients of one number that depends on the parameters",
            fix="Return its mean or sum, and compute it from the model that is passed, without no_grad.",
        )
    return loss, auxiliary


def _micro_batches(batch: Any, count: int) -> list[Any]:
    """The batch in equal parts along the first dimension of its tensors."""
    if count == 1:
        return [batch]
    leaves, tree = pytree.tree_flatten(batch)
    lengths = [leaf.shape[0] for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if any(length != lengths[0] for length in lengths):
        raise InputValueError(
            f"Tensors of {' and '.join(sorted(set(map(str, lengths))))} rows cannot be accumulated over together.",
            why="each micro-batch is a part of every tensor of the batch, along its first dimension",
            fix="Pass tensors of as many rows as there are examples, and keep others outside of the batch.",
        )
    parts = [_parts(leaf, count) for leaf in leaves]
    return [pytree.tree_unflatten([each[number] for each in parts], tree) for number in range(count)]


def _parts(leaf: Any, count: int) -> Sequence[Any]:
    if not isinstance(leaf, torch.Tensor) or leaf.dim() == 0:
        return [leaf] * count
    rows = leaf.shape[0]
    if rows % count:
        raise InputValueError(
            f"A batch of {rows} rows cannot be accumulated over {count} equal parts.",
            why="each of them is a micro-batch, and the step is made with the mean of their gradients",
            fix=f"Pass tensors whose first dimension is a multiple of {count}, or choose another accumulate.",
        )
    return [leaf.narrow(0, number * (rows // count), rows // count) for number in range(count)]


def _taken_gradients(parameters: Sequence[torch.Tensor]) -> Gradients:
    """The parameters' gradients, which are cleared."""
    found = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    return found


def _sum(one: torch.Tensor | None, other: torch.Tensor | None) -> torch.Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _joined(results: Sequence[Any]) -> Any:
    """The mean of the losses; other results are stacked along a new first dimension."""
    tree = pytree.tree_structure(results[0])
    columns = list(zip(*(pytree.tree_leaves(result) for result in results), strict=True))
    joined = [torch.stack(column) if isinstance(column[0], torch.Tensor) else column[0] for column in columns]
    return pytree.tree_unflatten([joined[0].mean(0), *joined[1:]], tree)
