"""``train_step``: forward, loss, backward, clipping and the optimizer's update as one compiled program."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from precast.autograd.compilers_in_use import CompilersInUse, remember_compilers
from precast.autograd.guards.impure_reads import noted_impurities, restored_chance, suspects
from precast.autograd.guards.state import StateGuards
from precast.autograd.uncaptured import warn_at_users_line
from precast.backend import Backend, CompilerFunction, get_backend
from precast.cache.store import open_store
from precast.errors import CaptureError, DataDependentError, InputTypeError, InputValueError
from precast.export.program import ExportedProgram
from precast.graph.opened_objects import PLAIN_TYPES, flatten_opened
from precast.graph.signature import OutputKind
from precast.ops.own_operators import random_seed
from precast.options import Options, as_options
from precast.trace.executed_code import noted_code
from precast.trace.state.reachable import reachable_state
from precast.trace.state.reads import Reads
from precast.training.capture import capture_step, evaluating, gradients_set_aside, run_on_fakes
from precast.training.checkpoints import Rank, read_checkpoint, write_checkpoint
from precast.training.compiled_step import CompiledStep
from precast.training.initial_state import add_initial_state, check_optimizer
from precast.training.live_state import LiveState, ModelStructure
from precast.training.placement import ONE_PROCESS, Placement, ShardedOptimizer, ShardedParameters
from precast.training.processes import missing_told, placement_of
from precast.training.saving import save_step
from precast.training.shared_code import compiled_once
from precast.training.step_module import (
    EvalModule,
    LossFunction,
    StepModule,
    StepSettings,
    check_parameters,
    parameters_of,
)
from precast.training.timeline import Timeline, timeline_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ENTRIES = {"train": "train_step", "eval": "eval"}
"""What a step can be saved as, and what the entries are called."""


def train_step(
    model: torch.nn.Module,
    loss_fn: LossFunction,
    optimizer: Optimizer,
    example_batch: Any,
    *,
    grad_clip: float | None = None,
    accumulate: int = 1,
    skip_nonfinite: bool = False,
    memory_budget: float | None = None,
    dynamic_shapes: Any = None,
    entries: Sequence[str] = ("train", "eval"),
    process_group: ProcessGroup | None = None,
    shard: str = "none",
    bucket_bytes: int = 25 * 2**20,
    backend: str | Backend | CompilerFunction = "native",
    options: Options | Mapping[str, Any] | None = None,
) -> TrainStep:
    """One step of training, compiled as a whole: ``loss = step(batch)`` updates the model and the optimizer.

    ``loss_fn(model, batch)`` returns the loss, or the loss and what else the step should return; batches are any
    tensors in any structure, like ``example_batch``. The optimizer's own update is traced. Learning rates are inputs,
    so that schedules go on as they do in eager.

    ``grad_clip``: the largest norm of all gradients together.
    ``accumulate``: how many equal parts of the batch, along first dimensions, are run one after the other.
    ``skip_nonfinite``: where the loss or a gradient is infinite or no number, nothing is updated.
    ``memory_budget``: how much of the forward may be kept for the backward, as a fraction of all that it reads, or in
    bytes; the rest is computed again.
    ``dynamic_shapes``: which sizes of the batch may change; else a step is compiled for each kind of batch.
    ``process_group``: those who train together, each on its part of the batch; the loss is the mean of theirs.
    ``shard``: what each of them keeps a part of: ``"none"``, ``"optimizer"`` (its state), or ``"parameters"`` (too).
    ``bucket_bytes``: how much is exchanged at a time, beside the rest of the backward.
    ``entries``: what ``step.save(path)`` writes: ``"train"``, and ``"eval"``, the loss function in eval mode.

    >>> model = torch.nn.Linear(3, 1)
    >>> _ = torch.nn.init.ones_(model.weight)
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    >>> batch = torch.ones(4, 3), torch.zeros(4, 1)
    >>> step = train_step(model, lambda m, b: (m(b[0]) - b[1]).square().mean(), optimizer, batch, backend="nop")
    >>> first = step(batch)
    >>> bool(step(batch) < first)
    True
    """
    check_optimizer(optimizer)
    check_parameters(optimizer)
    _check(model, grad_clip, accumulate, entries)
    _check_budget(memory_budget, accumulate, process_group)
    placement = placement_of(model, optimizer, process_group, shard, bucket_bytes)
    settings = StepSettings(grad_clip, accumulate, skip_nonfinite, memory_budget, placement=placement)
    compilers = CompilersInUse.of_backend(get_backend(backend), as_options(options))
    told: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "entries": entries, "process_group": process_group}
    step = TrainStep(model, loss_fn, optimizer, example_batch, settings, compilers, as_options(options), **told)
    step.compile_for(example_batch)
    return step


_MANY = 8
"""So many variants are worth a warning."""
_OTHER_BATCH = "another kind of batch (sizes that change are declared with dynamic_shapes)"


@dataclass(frozen=True)
class _Variant:
    """A compiled step, where it finds its state, and what it assumes of what the loss function reads besides."""

    step: CompiledStep
    state: LiveState
    guards: StateGuards

    def fitting_state(self) -> list[torch.Tensor] | None:
        """The state as it is now; None where something is not as the step assumes."""
        return self.state.read() if self.guards.hold() else None


class TrainStep:
    """A compiled step. ``step(batch)`` returns what the loss function returns, and updates the model in place.

    The model's modes, which of its parameters require grad, the optimizer's settings, and what else the loss function
    and the model read of Python's state are looked at in each call: a change is compiled for when it is first met.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        loss_fn: LossFunction,
        optimizer: Optimizer,
        example_batch: Any,
        settings: StepSettings,
        compilers: CompilersInUse,
        options: Options,
        *,
        dynamic_shapes: Any = None,
        entries: Sequence[str] = tuple(ENTRIES),
        process_group: ProcessGroup | None = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._loss_fn, self._example, self._settings = loss_fn, example_batch, settings
        self._compilers, self._options = compilers, options
        self._dynamic_shapes, self._entries = dynamic_shapes, tuple(entries)
        self._group = process_group
        self._structure = ModelStructure(model, optimizer)
        self._variants: dict[Any, list[_Variant]] = {}
        self._settled: list[dict[str, Any]] = []
        self._compilations = 0
        self._constant: set[tuple[int, str]] = set()
        self._skipped = torch.zeros((), dtype=torch.int64)
        remember_compilers(self, compilers)
        draws_own = compilers.inference.random_source() == "philox"
        self._seed = random_seed() if draws_own else torch.zeros((), dtype=torch.int64)

    def __call__(self, batch: Any) -> Any:
        """Make one step on a batch; an error that names what is wrong with it leaves everything as it was."""
        with missing_told(self._group):
            found = self._fitting(batch)
            if found is None:
                result = self._first_step(batch)
            else:
                step, state = found
                # Without dynamic sizes, all of the batch was compared when the step was looked up.
                leaves = flatten_opened(batch)[0] if self._dynamic_shapes is None else step.leaves_of(batch)
                result = step.run(state, leaves, self._seed)
        # Schedules ask whether the optimizer has made a step.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        return result

    @property
    def program(self) -> ExportedProgram:
        """The whole step as a program, captured for the example batch."""
        return self._program(self._module(), self._example)

    @property
    def skipped(self) -> int:
        """How many steps were left out, since the loss or a gradient was infinite or no number."""
        return int(self._skipped)

    @property
    def arena_bytes(self) -> int:
        """How large the memory is in which native code keeps all that is inside of a step on the example batch."""
        found = self._fitting(self._example)
        return 0 if found is None else found[0].arena_bytes(self._options)

    def compile_for(self, batch: Any) -> None:
        """Compile what a step on such a batch needs, without making one."""
        self._fitting(batch)

    def timeline(self, batch: Any) -> Timeline:
        """Make one step, and tell when it computed, exchanged and waited. All processes call it."""
        fitting = self._fitting(batch)
        if fitting is None:
            self(batch)
            return self.timeline(batch)
        size = 1 if self._group is None else self._group.size()
        return timeline_of(lambda: self(batch), fitting[0].module.graph, size)

    def save(self, path: str | os.PathLike[str], *, targets: Sequence[str] = ("native",), sign: Any = None) -> Path:
        """Write a file whose entries train and evaluate the model without torch, from the state that it has now."""
        if not self._add_state():
            raise InputValueError(
                f"The state of {type(self.optimizer).__name__} begins with its first step.",
                why="until then there is none that a later step could go on from",
                fix="Make one step, and save then.",
            )
        if isinstance(self._settings.placement, ShardedOptimizer):
            raise InputValueError(
                "A step whose state is sharded cannot be saved as a file.",
                why="each process holds a part of it",
                fix="Use save_checkpoint; whole_state_dict() puts the parameters together for a step of one process.",
            )
        programs = {ENTRIES[entry]: self._entry(entry) for entry in self._entries}
        return save_step(programs, Path(path), int(self._seed), targets=targets, sign=sign, options=self._options)

    def save_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Write all that a step continues from: one file a process, whole at every moment. All processes call it."""
        with missing_told(self._group):
            write_checkpoint(Path(folder), *self._kept())

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint, also one of another number of processes. All processes call it."""
        with missing_told(self._group):
            read_checkpoint(Path(folder), *self._kept())

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """The model's state, with parameters that are sharded put together. All processes call it."""
        placement = self._settings.placement
        state = self.model.state_dict()
        if isinstance(placement, ShardedParameters):
            with torch.no_grad():
                state |= placement.replaced([each.detach() for each in placement.whole(parameters_of(self.optimizer))])
        return state

    def _kept(self) -> tuple[dict[str, torch.Tensor], Optimizer, Placement, Rank]:
        self._add_state()
        module = self._module()
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), "random.seed": self._seed}
        groups = {f"optimizer.groups.{number.path}" for number in module.numbers}
        kept = {name: tensor for name, tensor in tensors.items() if name not in groups}
        return kept, self.optimizer, self._settings.placement, Rank.of(self._group)

    def state_dict(self) -> dict[str, Any]:
        """All that a step continues from: the model's state, the optimizer's, and the seed of random numbers."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "seed": self._seed.clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what ``state_dict`` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self._seed.copy_(state["seed"])

    def _entry(self, entry: str) -> ExportedProgram:
        if entry == "train":
            # A file is run by one process.
            return self._program(self._module(replace(self._settings, placement=ONE_PROCESS)), self._example)
        with evaluating(self.model):
            return capture_step(EvalModule(self.model, self._loss_fn), self._example, self._dynamic_shapes)

    def _module(self, settings: StepSettings | None = None) -> StepModule:
        return StepModule(self.model, self._loss_fn, self.optimizer, settings or self._settings, self._skipped)

    def _first_step(self, batch: Any) -> Any:
        """A step as torch makes it."""
        if not self._settings.skip_nonfinite:
            return self._module()(batch)
        model, optimizer = deepcopy(self.model.state_dict()), deepcopy(self.optimizer.state_dict())
        result, is_finite = self._module()(batch)
        if not is_finite:
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        return result

    def _add_state(self) -> bool:
        return add_initial_state(self.optimizer, self._trained())

    def _trained(self) -> list[torch.Tensor]:
        return [parameter for parameter in parameters_of(self.optimizer) if parameter.requires_grad]

    def _fitting(self, batch: Any) -> tuple[CompiledStep, list[torch.Tensor]] | None:
        """The compiled step for such a batch, and its state; None where the optimizer makes its first step itself."""
        known = self._variants.setdefault(self._key(batch), [])
        for variant in known:
            if (state := variant.fitting_state()) is not None:
                return variant.step, state
        stateless = [each for each in self._trained() if not self.optimizer.state.get(each)]
        if not self._add_state():
            return None
        if sum(map(len, self._variants.values())) == _MANY:
            change = next(known[-1].guards.changes(), "the optimizer's state") if known else _OTHER_BATCH
            warn_at_users_line(f"This training step was compiled {_MANY} times; now: {change}.")
        self._compilations += 1
        with compiled_once(self._group, open_store(self._options), self._compilations):
            variant = self._compiled(batch, stateless)
        known.append(variant)
        state = variant.state.read()
        assert state is not None, "the state that a step was captured with fits it"
        return variant.step, state

    def _compiled(self, batch: Any, stateless: Sequence[torch.Tensor]) -> _Variant:
        """``stateless`` are parameters that had no state before: those that get no gradient have none in eager."""
        with restored_chance(), noted_code(lambda executed: None) as executed:
            module, exported = self._captured(batch)
        if suspicious := suspects(executed):
            with restored_chance(), noted_impurities(suspicious) as impure_reads:
                run_on_fakes(module, batch)
            _refuse_impure(impure_reads)
        guards = StateGuards(reachable_state(partial(self._loss_fn, self.model), Reads.of(executed)))
        program = exported.program
        updates = program.signature.outputs_of(OutputKind.PARAMETER_MUTATION)
        updated = {id(program.state[str(spec.target)]) for spec in updates}
        strays = [parameter for parameter in stateless if id(parameter) not in updated]
        if strays:
            for parameter in strays:
                self.optimizer.state.pop(parameter, None)
            module, exported = self._captured(batch)
        step = CompiledStep(exported, self._compilers)
        numbers = {number: module.optimizer.get_buffer(f"groups.{number.path}") for number in module.numbers}
        state = LiveState(self.model, self.optimizer, step.state_names, exported.program.state, numbers)
        return _Variant(step, state, guards)

    def _program(self, module: StepModule, batch: Any) -> ExportedProgram:
        settings = self._settings
        with gradients_set_aside(parameters_of(self.optimizer)):
            return capture_step(
                module,
                batch,
                self._dynamic_shapes,
                skips_nonfinite=settings.skip_nonfinite,
                memory_budget=settings.memory_budget,
            )

    def _captured(self, batch: Any) -> tuple[StepModule, ExportedProgram]:
        """The step as a program; settings by which the optimizer decides what to do stay constants of it."""
        module = self._module()
        try:
            return module, self._program(module, batch)
        except DataDependentError:
            if not self._settings.moving:
                raise
        self._constant |= self._settings.moving
        self._settings = replace(self._settings, moving=frozenset())
        return self._captured(batch)

    def _key(self, batch: Any) -> Any:
        """What decides which program a call needs."""
        trained = tuple([parameter.requires_grad for parameter in parameters_of(self.optimizer)])
        leaves, tree = flatten_opened(batch)
        kinds = None if self._dynamic_shapes is not None else (tree, tuple(map(_kind, leaves)))
        return self._group_key(), self._structure.key(), trained, kinds

    def _group_key(self) -> Any:
        """The optimizer's settings that are constants of a program; one that changes becomes state if it can be."""
        optimizer = self.optimizer
        known = [{name: group.get(name) for name in optimizer.defaults} for group in optimizer.param_groups]
        moving = set(self._settings.moving)
        for number, (group, before) in enumerate(zip(known, self._settled, strict=False)):
            moving |= {(number, name) for name in group if name != "lr" and _has_moved(before.get(name), group[name])}
        moving -= self._constant
        if moving != self._settings.moving:
            self._settings = replace(self._settings, moving=frozenset(moving))
            self._variants.clear()
        self._settled = known
        return tuple(
            _constant_part(name, value, is_moving=(number, name) in moving)
            for number, group in enumerate(known)
            for name, value in group.items()
        )


def _constant_part(name: str, value: Any, *, is_moving: bool) -> Any:
    """What of a setting is a constant of a program: of numbers that change, whether they are zero."""
    if name == "lr" or isinstance(value, torch.Tensor):
        return name, type(value)
    if is_moving:
        return name, tuple([each != 0 for each in pytree.tree_leaves(value)])
    return name, tuple(value) if isinstance(value, list) else value


def _has_moved(before: Any, now: Any) -> bool:
    """Whether a setting is a number, or several, and another than before."""
    numbers = (float, tuple, list)
    return isinstance(before, numbers) and isinstance(now, numbers) and before != now


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.device, leaf.layout
    if not isinstance(leaf, PLAIN_TYPES):
        raise InputTypeError(
            f"A batch holds a {type(leaf).__name__}.",
            why="a step takes tensors, in any structure; what else is in a batch is a constant of the compiled step",
            fix="Pass tensors: torch.as_tensor(…).",
        )
    return type(leaf), leaf


def _refuse_impure(reads: Sequence[str]) -> None:
    if reads:
        raise CaptureError(
            "The step reads what no guard can check.",
            at="; ".join(dict.fromkeys(reads)),
            why="a compiled step would go on with what it was when captured",
            fix="Compute it outside, and pass it as a part of the batch.",
        )


def _check_budget(memory_budget: float | None, accumulate: int, group: ProcessGroup | None) -> None:
    if memory_budget is not None and (accumulate > 1 or group is not None):
        raise InputValueError(
            "memory_budget goes with one process and one micro-batch.",
            why="a step is cut once, between its forward and its backward",
            fix="Leave out memory_budget: accumulate= and shard= lower the memory of a step, too.",
        )


def _check(model: object, grad_clip: object, accumulate: object, entries: Sequence[str]) -> None:
    if not isinstance(model, torch.nn.Module):
        raise InputTypeError(
            f"train_step() was given a {type(model).__name__} as model.",
            why="a step updates the parameters of a module",
            fix="Pass an nn.Module.",
        )
    if grad_clip is not None and not (isinstance(grad_clip, float | int) and grad_clip > 0):
        raise InputValueError(
            f"grad_clip cannot be {grad_clip!r}.", why="it is the largest norm of the gradients", fix="Pass 1.0, say."
        )
    if not (type(accumulate) is int and accumulate > 0):
        raise InputValueError(
            f"accumulate cannot be {accumulate!r}.", why="it counts the parts of a batch", fix="Pass 1 or more."
        )
    if isinstance(entries, str) or not entries or not set(entries) <= ENTRIES.keys():
        raise InputValueError(
            f"entries cannot be {entries!r}.", why=f"they are of {', '.join(ENTRIES)}", fix="Pass ('train', 'eval')."
        )
