"""``train_step``: forward, loss, backward, clipping and the optimizer's update as one compiled program."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
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
from precast.errors import DataDependentError, InputTypeError, InputValueError
from precast.export.program import ExportedProgram
from precast.graph.opened_objects import PLAIN_TYPES, flatten_opened
from precast.graph.signature import OutputKind
from precast.ops.own_operators import random_seed
from precast.options import Options, as_options
from precast.trace.executed_code import noted_code
from precast.trace.state.reachable import reachable_state
from precast.trace.state.reads import Reads
from precast.trace.state.stored import Stored
from precast.training.capture import capture_evaluation, capture_step, evaluating, gradients_set_aside, run_on_fakes
from precast.training.checkpoints import Rank, read_checkpoint, write_checkpoint
from precast.training.checks import check_arguments, check_budget, check_leaves, refuse_autocast, refuse_impure
from precast.training.compiled_step import CompiledStep
from precast.training.initial_state import add_initial_state, check_optimizer, counted_by
from precast.training.live_state import LiveState, ModuleStructure
from precast.training.numbers import FRACTIONS, NUMBERS, GroupNumber, own_state
from precast.training.optimizer_guards import attributes_key, check_hooks, reads_of_optimizer
from precast.training.placement import ONE_PROCESS, Placement, ShardedOptimizer, ShardedParameters
from precast.training.processes import placement_of, reporting_missing
from precast.training.python_state import Recorded, settled_step
from precast.training.saving import save_step
from precast.training.shared_code import compiled_once
from precast.training.step_module import (
    EvalModule,
    LossFunction,
    StepModule,
    StepSettings,
    parameters_of,
)
from precast.training.timeline import Timeline, timeline_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

ENTRIES = {"train": "train_step", "eval": "eval"}
"""The entries that a step can be saved with, and their names."""


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
    """Compile a whole training step: ``loss = step(batch)`` updates the model and the optimizer in place.

    ``loss_fn(model, batch)`` returns the loss, or a tuple of the loss and further results of the step. Batches are
    tensors in any structure, like ``example_batch``. The optimizer's own update is traced. Learning rates are inputs,
    so schedules work as in eager mode.

    ``grad_clip``: the maximum norm of all gradients together.
    ``accumulate``: split the batch along first dimensions into this many equal parts, and accumulate their gradients.
    ``skip_nonfinite``: update nothing if the loss or a gradient is infinite or NaN.
    ``memory_budget``: how much of the forward may be saved for the backward, as a fraction of what the backward reads,
    or in bytes; the rest is recomputed.
    ``dynamic_shapes``: which sizes of the batch may change; otherwise each combination of sizes is compiled separately.
    ``process_group``: processes that train together, each on its part of the batch; the loss is the mean over all.
    ``shard``: what is sharded over these processes: ``"none"``, ``"optimizer"`` (its state) or ``"parameters"`` (both).
    ``bucket_bytes``: the size of the buckets in which gradients are reduced, overlapped with the backward.
    ``entries``: the entries that ``step.save(path)`` writes: ``"train"``, and ``"eval"``, the loss function in eval
    mode.

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
    check_hooks(optimizer, parameters_of(optimizer))
    check_arguments(model, grad_clip, accumulate, entries, ENTRIES)
    check_budget(memory_budget, accumulate, process_group)
    placement = placement_of(model, optimizer, process_group, shard, bucket_bytes)
    settings = StepSettings(
        grad_clip, accumulate, skip_nonfinite, memory_budget, counted=counted_by(optimizer), placement=placement
    )
    compilers = CompilersInUse.of_backend(get_backend(backend), as_options(options))
    keywords: dict[str, Any] = {"dynamic_shapes": dynamic_shapes, "entries": entries, "process_group": process_group}
    step = TrainStep(model, loss_fn, optimizer, example_batch, settings, compilers, as_options(options), **keywords)
    step.compile_for(example_batch)
    return step


_MANY = 8
"""The number of variants that causes a warning."""
_OTHER_BATCH = "another kind of batch (sizes that change are declared with dynamic_shapes)"


@dataclass(frozen=True)
class _Variant:
    """A compiled step, its state, and its guards on what else the loss function reads."""

    step: CompiledStep
    state: LiveState
    guards: tuple[StateGuards, ...]
    """One of them holds: those before a step's writes to Python's state, or those after."""

    def fitting_state(self) -> list[torch.Tensor] | None:
        """The current state; None if something differs from what the step assumes."""
        return self.state.read() if any(each.hold() for each in self.guards) else None


class TrainStep:
    """A compiled training step. ``step(batch)`` returns what the loss function returns, and updates the model in place.

    Each call checks the model's mode, ``requires_grad`` of its parameters, the optimizer's settings, and other Python
    state that the loss function and the model read; after a change the step is compiled again.
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
        self._structure = ModuleStructure(self._root(), optimizer)
        # Schedules add names of their own to the groups later.
        self._names = sorted({name for group in optimizer.param_groups for name in group} - {"params"})
        self._variants: dict[Any, list[_Variant]] = {}
        self._first_steps: dict[Any, list[StateGuards]] = {}
        self._settled: list[dict[str, Any]] = []
        self._compilations = 0
        self._constant: set[tuple[int, str]] = set()
        self._skipped = torch.zeros((), dtype=torch.int64)
        remember_compilers(self, compilers)
        draws_own = compilers.inference.random_source() == "philox"
        self._seed = random_seed() if draws_own else torch.zeros((), dtype=torch.int64)

    def __call__(self, batch: Any) -> Any:
        """Run one step on a batch; if the batch does not fit, an error says why, and nothing is changed."""
        with reporting_missing(self._group):
            found = self._fitting(batch)
            if found is None:
                result = self._first_step(batch)
            else:
                step, live, state = found
                # Without dynamic sizes, the whole batch was compared in the lookup of the step.
                leaves = flatten_opened(batch)[0] if self._dynamic_shapes is None else step.leaves_of(batch)
                result = step.run(state, leaves, self._seed)
                live.keep_counts()
        # Schedules check whether the optimizer has made a step.
        self.optimizer._opt_called = True  # type: ignore[attr-defined]
        return result

    @property
    def program(self) -> ExportedProgram:
        """The program of the whole step, captured for the example batch."""
        refuse_autocast()
        return self._program(self._module(), self._example)

    @property
    def skipped(self) -> int:
        """The number of steps skipped because the loss or a gradient was infinite or NaN."""
        return int(self._skipped)

    @property
    def arena_bytes(self) -> int:
        """The size of the arena that holds all intermediate values of a step on the example batch."""
        found = self._fitting(self._example)
        return 0 if found is None else found[0].arena_bytes(self._options)

    def compile_for(self, batch: Any) -> None:
        """Compile the step for batches like this one, without running it."""
        self._fitting(batch)

    def timeline(self, batch: Any) -> Timeline:
        """Run one step and record when it computed, communicated and waited. Call it in all processes."""
        fitting = self._fitting(batch)
        if fitting is None:
            self(batch)
            return self.timeline(batch)
        size = 1 if self._group is None else self._group.size()
        return timeline_of(lambda: self(batch), fitting[0].module.graph, size)

    def save(self, path: str | os.PathLike[str], *, targets: Sequence[str] = ("native",), sign: Any = None) -> Path:
        """Write a package whose entries train and evaluate the model without torch, starting from its current state."""
        if not self._add_state() or self._fitting(self._example) is None:
            raise InputValueError(
                f"The state of {type(self.optimizer).__name__} begins with its first step.",
                why="before it, there is no state that a later step could continue from",
                fix="Run one step, and save then.",
            )
        if isinstance(self._settings.placement, ShardedOptimizer):
            raise InputValueError(
                "A step whose state is sharded cannot be saved as a file.",
                why="each process holds a part of it",
                fix="Use save_checkpoint; whole_state_dict() recombines the parameters for a step of one process.",
            )
        programs = {ENTRIES[entry]: self._entry(entry) for entry in self._entries}
        return save_step(programs, Path(path), int(self._seed), targets=targets, sign=sign, options=self._options)

    def save_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Write a checkpoint: one file per process, replaced atomically. Call it in all processes."""
        with reporting_missing(self._group):
            write_checkpoint(Path(folder), *self._kept(self._module_with_state()))

    def load_checkpoint(self, folder: str | os.PathLike[str]) -> None:
        """Continue from a checkpoint, which may be of another number of processes. Call it in all processes."""
        with reporting_missing(self._group):
            module = self._module_with_state()
            read_checkpoint(Path(folder), *self._kept(module))
        for number in module.numbers:
            if number.counts and not isinstance(number, GroupNumber):
                number.update(self.optimizer, module.optimizer.get_buffer(number.path))

    def whole_state_dict(self) -> dict[str, torch.Tensor]:
        """Return the model's state with sharded parameters gathered. Call it in all processes."""
        placement = self._settings.placement
        state = self.model.state_dict()
        if isinstance(placement, ShardedParameters):
            with torch.no_grad():
                state |= placement.replaced([each.detach() for each in placement.whole(parameters_of(self.optimizer))])
        return state

    def _module_with_state(self) -> StepModule:
        self._add_state()
        return self._module()

    def _kept(self, module: StepModule) -> tuple[dict[str, torch.Tensor], Optimizer, Placement, Rank]:
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers()), "random.seed": self._seed}
        # Those of groups are written as plain values.
        settings = {f"optimizer.{number.path}" for number in module.numbers if isinstance(number, GroupNumber)}
        kept = {name: tensor for name, tensor in tensors.items() if name not in settings}
        return kept, self.optimizer, self._settings.placement, Rank.of(self._group)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the model, of the optimizer and of random numbers."""
        own = pytree.tree_map_only(torch.Tensor, torch.clone, own_state(self.optimizer, self._settings.counted))
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return {**states, "seed": self._seed.clone(), "attributes": own}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for name, value in state.get("attributes", {}).items():
            setattr(self.optimizer, name, deepcopy(value))
        self._seed.copy_(state["seed"])

    def _entry(self, entry: str) -> ExportedProgram:
        if entry == "train":
            # A file is run by one process.
            return self._program(self._module(replace(self._settings, placement=ONE_PROCESS)), self._example)
        with evaluating(self.model):
            return capture_evaluation(EvalModule(self.model, self._loss_fn), self._example, self._dynamic_shapes)

    def _module(self, settings: StepSettings | None = None) -> StepModule:
        return StepModule(self.model, self._loss_fn, self.optimizer, settings or self._settings, self._skipped)

    def _first_step(self, batch: Any) -> Any:
        """A step in eager."""
        with gradients_set_aside(parameters_of(self.optimizer)):
            if not self._settings.skip_nonfinite:
                return self._module()(batch)
            model, optimizer = deepcopy(self.model.state_dict()), deepcopy(self.optimizer.state_dict())
            result, is_finite = self._module()(batch)
        if not is_finite:
            self.model.load_state_dict(model)
            self.optimizer.load_state_dict(optimizer)
        return result

    def _add_state(self) -> bool:
        if any(name not in self.optimizer.param_groups[group] for group, name in self._settings.counted.groups):
            return False
        return add_initial_state(self.optimizer, self._trained())

    def _trained(self) -> list[torch.Tensor]:
        return [parameter for parameter in parameters_of(self.optimizer) if parameter.requires_grad]

    def _fitting(self, batch: Any) -> tuple[CompiledStep, LiveState, list[torch.Tensor]] | None:
        """The compiled step for such a batch, and its state; None if the first step must run in eager."""
        refuse_autocast()
        check_hooks(self.optimizer, parameters_of(self.optimizer))
        key = self._key(batch)
        known, first_steps = self._variants.setdefault(key, []), self._first_steps.setdefault(key, [])
        for variant in known:
            if (state := variant.fitting_state()) is not None:
                return variant.step, variant.state, state
        if any(each.hold() for each in first_steps):
            return None
        stateless = [each for each in self._trained() if not self.optimizer.state.get(each)]
        if not self._add_state():
            return None
        if sum(map(len, self._variants.values())) == _MANY:
            change = next(known[-1].guards[-1].changes(), "the optimizer's state") if known else _OTHER_BATCH
            warn_at_users_line(f"This training step was compiled {_MANY} times; now: {change}.")
        self._compilations += 1
        with compiled_once(self._group, open_store(self._options), self._compilations):
            compiled, first = self._compiled(batch, stateless)
        if compiled is not None:
            known.append(compiled)
        if first is not None:
            first_steps.append(first)
        if compiled is None or first is not None:
            return None
        state = compiled.state.read()
        assert state is not None, "the state that a step was captured with fits it"
        return compiled.step, compiled.state, state

    def _compiled(self, batch: Any, stateless: Sequence[torch.Tensor]) -> tuple[_Variant | None, StateGuards | None]:
        """A variant, and guards that hold where a step in eager comes before it.

        ``stateless`` are parameters without state so far: in eager, those without a gradient remain so.
        """
        step = self._recorded(batch)
        if suspicious := suspects(step.executed):
            set_aside = gradients_set_aside(parameters_of(self.optimizer))
            with restored_chance(), set_aside, noted_impurities(suspicious) as impure_reads:
                run_on_fakes(step.module, batch)
            refuse_impure(impure_reads)
        program = step.exported.program
        updates = program.signature.outputs_of(OutputKind.PARAMETER_MUTATION)
        updated = {id(program.state[str(spec.target)]) for spec in updates}
        strays = [parameter for parameter in stateless if id(parameter) not in updated]
        if strays:
            for parameter in strays:
                self.optimizer.state.pop(parameter, None)
            step = self._recorded(batch)
        settled = settled_step(step, self._root(optimizer=self.optimizer), partial(self._recorded, batch))
        if (later := settled.step) is None:
            return None, settled.first
        module, captured, places = later.module, later.exported.program.state, later.state.tensors
        compiled = CompiledStep(later.exported, later.stored, self._compilers)
        numbers = {number: module.optimizer.get_buffer(number.path) for number in module.numbers}
        state = LiveState(self.model, self.optimizer, compiled.state_names, captured, numbers, places)
        return _Variant(compiled, state, settled.guards), settled.first

    def _root(self, **more: Any) -> Callable[..., Any]:
        """A callable from which everything in Python's state that a step reads is reached, under names for errors."""
        loss: Callable[..., Any] = self._loss_fn
        root = partial(loss, model=self.model, **more)
        root.__name__ = "step"  # type: ignore[attr-defined]
        return root

    def _recorded(self, batch: Any) -> Recorded:
        stored: list[Stored] = []
        with restored_chance(), noted_code(lambda executed: None) as executed:
            module, exported = self._captured(batch, stored.append)
        state = reachable_state(self._root(**reads_of_optimizer(self.optimizer)), Reads.of(executed))
        attributes = partial(attributes_key, self.optimizer, self._settings.counted)
        key = attributes(), self._structure.key(), self._group_settings()
        return Recorded(module, exported, state, StateGuards(state), attributes, stored[-1], executed, key)

    def _program(
        self, module: StepModule, batch: Any, tell_stored: Callable[[Stored], object] | None = None
    ) -> ExportedProgram:
        """The step as a program; ``tell_stored`` is told what it leaves in Python's state, which it returns then."""
        settings = self._settings
        with gradients_set_aside(parameters_of(self.optimizer)):
            return capture_step(
                module,
                batch,
                self._dynamic_shapes,
                skips_nonfinite=settings.skip_nonfinite,
                memory_budget=settings.memory_budget,
                tell_stored=tell_stored,
            )

    def _captured(self, batch: Any, tell_stored: Callable[[Stored], object]) -> tuple[StepModule, ExportedProgram]:
        """The step as a program; settings that the optimizer branches on remain constants of it."""
        module = self._module()
        try:
            return module, self._program(module, batch, tell_stored)
        except DataDependentError:
            if not self._settings.moving:
                raise
        self._constant |= self._settings.moving
        self._settings = replace(self._settings, moving=frozenset())
        return self._captured(batch, tell_stored)

    def _key(self, batch: Any) -> Any:
        """The key of the program that a call needs."""
        trained = tuple([parameter.requires_grad for parameter in parameters_of(self.optimizer)])
        leaves, tree = flatten_opened(batch)
        check_leaves(leaves, parameters_of(self.optimizer))
        kinds = None if self._dynamic_shapes is not None else (tree, tuple(map(_kind, leaves)))
        attributes = attributes_key(self.optimizer, self._settings.counted)
        return self._group_key(), attributes, self._structure.key(), trained, kinds

    def _group_settings(self) -> list[dict[str, Any]]:
        """The settings of each group, except what the optimizer counts there."""
        counted = self._settings.counted.groups
        return [
            {name: group[name] for name in self._names if name in group and (number, name) not in counted}
            for number, group in enumerate(self.optimizer.param_groups)
        ]

    def _group_key(self) -> Any:
        """The optimizer's settings that are constants of a program; one that changes becomes state if possible."""
        known = self._group_settings()
        moving = set(self._settings.moving)
        for number, (group, before) in enumerate(zip(known, self._settled, strict=False)):
            moving |= {(number, name) for name in group if name != "lr" and _has_moved(before.get(name), group[name])}
        moving -= self._constant
        if moving != self._settings.moving:
            self._settings = replace(self._settings, moving=frozenset(moving))
            self._variants.clear()
        self._settled = known
        sizes = tuple([len(group["params"]) for group in self.optimizer.param_groups])
        return sizes, tuple(
            _constant_part(name, value, is_moving=(number, name) in moving)
            for number, group in enumerate(known)
            for name, value in group.items()
        )


def _plain(value: Any) -> Any:
    """A setting as a part of a key."""
    if isinstance(value, dict):
        return tuple(value), tuple(map(_plain, value.values()))
    return tuple(map(_plain, value)) if isinstance(value, list) else value


def _constant_part(name: str, value: Any, *, is_moving: bool) -> Any:
    """The part of a setting that is a constant of a program: for numbers that change, whether they are zero."""
    if isinstance(value, torch.Tensor) or (name == "lr" and isinstance(value, NUMBERS)):
        return name, type(value)
    if is_moving:
        return name, tuple([each != 0 for each in pytree.tree_leaves(value)])
    return name, _plain(value)


def _has_moved(before: Any, now: Any) -> bool:
    """Whether a setting is a number with a fraction, or several numbers, and has changed."""
    return _may_move(before) and _may_move(now) and before != now


def _may_move(value: Any) -> bool:
    return isinstance(value, (tuple, list, *FRACTIONS))


def _kind(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype, tuple(leaf.shape), leaf.device, leaf.layout
    if not isinstance(leaf, PLAIN_TYPES):
        raise InputTypeError(
            f"A batch holds a {type(leaf).__name__}.",
            why="a step takes tensors, in any structure; everything else in a batch is a constant of the compiled step",
            fix="Pass tensors: torch.as_tensor(…).",
        )
    return type(leaf), leaf
