"""CUDA graphs: a compiled graph's launches are recorded once, and then replayed as a whole.

A recording reads and writes fixed memory, so each call checks first:

- inputs at their recorded addresses are read in place; others are copied there;
- results stay in recorded memory while they are referenced: then another recording is used, or made, or the graph
  runs without one. Results passed to a caller are never overwritten;
- random seeds are drawn as in every call, and copied to where kernels read them.

Calls of several threads choose and replay one at a time. The memory of a recording comes from a pool of torch's
allocator, and is freed with the recording.
"""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.graph.float32_precision import float32_precision
from precast.native.call import CompiledGraph, NativeStep, OperatorCall, Sizes, TorchStep, Value, Values
from precast.native.targets.cuda.run import GpuEntry, distinct, unpinned
from precast.ops.own_operators import random_seed, random_stream

_log = logging.getLogger("precast.cuda")

CALLS_BEFORE = 2
"""The first calls are not recorded: libraries initialize, and inputs show whether their addresses change."""
PATIENCE = 6
"""After this many calls a recording is made even if large inputs still move."""
MOST_RECORDINGS = 4
"""Per kind of call; results of several calls may be referenced at a time."""
MOST_KINDS = 8
"""The number of kinds of calls, by sizes, whose recordings are kept: those of the latest calls."""
MOST_ATTEMPTS = 16
LARGE = 2**20
"""Inputs of fewer bytes are copied rather than recorded again."""
SMALL_RESULT = 4096
FEW_RESULTS = 8
"""A few small results are copied for the caller: a loss, for example, is often kept."""

_ON_HOST = (random_seed, random_stream)


def may_be_recorded(graph: CompiledGraph) -> bool:
    """Whether everything that a graph does, except drawing seeds, can be recorded."""
    calls = [call for step in graph.steps if isinstance(step, TorchStep) for call in step.calls]
    entries = [step.entry for step in graph.steps if isinstance(step, NativeStep)]
    chooses = any(isinstance(each, GpuEntry) and each.looks_at_data for each in entries)
    return bool(graph.steps) and not chooses and not any(call.sizes or _looks_at_data(call) for call in calls)


def _looks_at_data(call: OperatorCall) -> bool:
    function = call.function
    if not isinstance(function, torch._ops.OpOverload):
        return isinstance(function, torch._ops.HigherOrderOperator)
    tags = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
    is_known = function.namespace in ("aten", "prims") or function in _ON_HOST
    return not is_known or not tags.isdisjoint(function.tags)


@dataclass
class _Recording:
    """One recorded run: the addresses of its inputs, and its results."""

    graph: torch.cuda.CUDAGraph
    addresses: dict[int, int]
    copies: dict[int, torch.Tensor]
    results: dict[int, torch.Tensor]
    holders: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.places, self.expected = list(self.addresses), list(self.addresses.values())
        self.storages = {number: result.untyped_storage() for number, result in self.results.items()}
        self.holders = {number: _holders(storage) for number, storage in self.storages.items()}

    def held(self) -> list[int]:
        """The results that are still referenced."""
        return [number for number, storage in self.storages.items() if _holders(storage) > self.holders[number]]

    def reads(self, values: Values) -> bool:
        """Whether all inputs are at their recorded addresses."""
        # Every call checks this for hundreds of parameters.
        return [values[number].data_ptr() for number in self.places] == self.expected


def _holders(storage: torch.UntypedStorage) -> int:
    return torch._C._storage_Use_Count(storage._cdata)


@dataclass
class _Kind:
    """Calls of the same sizes."""

    calls: int = 0
    attempts: int = 0
    last: dict[int, int] = field(default_factory=dict)
    moving: set[int] = field(default_factory=set)
    copied_out: set[int] = field(default_factory=set)
    recordings: list[_Recording] = field(default_factory=list)


class RecordedGraph:
    """Calls a compiled graph, replaying a recording if one fits."""

    def __init__(self, graph: CompiledGraph):
        self.graph = graph
        self.is_off = False
        self.device: torch.device | None = None
        self.lock = threading.RLock()
        self.kinds: dict[tuple[object, ...], _Kind] = {}
        self.host_calls = [
            call
            for step in graph.steps
            if isinstance(step, TorchStep)
            for call in step.calls
            if call.function in _ON_HOST
        ]
        made = {call.output for call in self.host_calls}
        self.steps = [step for step in (_without(each, made) for each in graph.steps) if step is not None]
        self.host_values = made
        self.written = {source for step in graph.steps if isinstance(step, NativeStep) for _, source in step.updated}
        self.result_numbers = _result_numbers(graph)
        self.computed = {number for step in self.steps for number in _outputs(step)}

    def __call__(self, inputs: list[Any]) -> list[Any]:
        if self.is_off or torch.cuda.is_current_stream_capturing():
            return self.graph.run(inputs)
        values, sizes = self.graph.begin(inputs)
        if self.device is None:
            self.device = _only_device(values)
            self.is_off = self.device is None
        for call in self.host_calls:
            values[call.output] = call.run(values, sizes)
        if self.device is not None:
            with torch.cuda.device(self.device), self.lock:
                kind = self.kind(sizes)
                recording = self.fitting(kind, values)
                if recording is None and self.may_record(kind, values):
                    recording = self.released(kind, values) or self.record(kind, values, sizes)
                self.note(kind, values)
                if recording is not None:
                    return self.replay(recording, kind, values, sizes)
        return self.run(values, sizes)

    def kind(self, sizes: Sizes) -> _Kind:
        key = (torch.cuda.current_stream(), *_settings(), *sizes.values())
        found = self.kinds.pop(key, None)
        while found is None and len(self.kinds) >= MOST_KINDS:
            del self.kinds[next(iter(self.kinds))]
        found = self.kinds[key] = found or _Kind()
        found.calls += 1
        return found

    def run(self, values: Values, sizes: Sizes) -> list[Any]:
        self.graph.run_steps(self.steps, values, sizes)
        return self.graph.end(values, sizes)

    # Choosing

    def tensors(self, values: Values) -> dict[int, torch.Tensor]:
        numbers = (*range(self.graph.graph.inputs), *sorted(self.host_values))
        return {number: values[number] for number in numbers if isinstance(values[number], torch.Tensor)}

    def fitting(self, kind: _Kind, values: Values) -> _Recording | None:
        """A recording whose inputs have not moved, and whose results are not referenced."""
        for recording in list(kind.recordings):
            if not recording.reads(values):
                continue
            held = recording.held()
            if not held:
                return recording
            if len(held) <= FEW_RESULTS and len(kind.recordings) >= MOST_RECORDINGS:
                # The caller keeps these: from now on they are copied, which leaves the recorded memory free.
                kind.copied_out |= set(held)
                kind.recordings.remove(recording)
        return None

    def released(self, kind: _Kind, values: Values) -> _Recording | None:
        """A recording whose results only reference cycles keep alive, which are collected here.

        Another recording would take the same memory again, and its results would be at other addresses.
        """
        if not any(recording.reads(values) for recording in kind.recordings):
            return None
        gc.collect()
        return self.fitting(kind, values)

    def may_record(self, kind: _Kind, values: Values) -> bool:
        if kind.calls <= CALLS_BEFORE or kind.attempts >= MOST_ATTEMPTS:
            return False
        tensors = self.tensors(values)
        if any(_is_odd(tensor) for tensor in tensors.values()):
            return False
        large = [number for number, tensor in tensors.items() if tensor.nbytes >= LARGE]
        is_still = all(kind.last.get(number) == tensors[number].data_ptr() for number in large)
        if not is_still and kind.calls <= PATIENCE:
            return False
        if len(kind.recordings) >= MOST_RECORDINGS:
            idle = [each for each in kind.recordings if not each.held()]
            if not idle:
                return False
            # Inputs that keep moving are copied.
            kind.moving |= {
                number for number in idle[0].addresses if idle[0].addresses[number] != values[number].data_ptr()
            }
            kind.recordings.remove(idle[0])
        return True

    def note(self, kind: _Kind, values: Values) -> None:
        if kind.calls <= PATIENCE + CALLS_BEFORE or not kind.recordings:
            kind.last = {number: tensor.data_ptr() for number, tensor in self.tensors(values).items()}

    # Recording

    def record(self, kind: _Kind, values: Values, sizes: Sizes) -> _Recording | None:
        kind.attempts += 1
        copies: dict[int, torch.Tensor] = {}
        addresses: dict[int, int] = {}
        recorded = list(values)
        graph, stream = torch.cuda.CUDAGraph(), _recording_stream(torch.cuda.current_device())
        try:
            for number, tensor in self.tensors(values).items():
                is_still = kind.last.get(number) == tensor.data_ptr() and number not in kind.moving
                if _is_on_gpu(tensor) and (is_still or (tensor.nbytes >= LARGE and number not in kind.moving)):
                    addresses[number] = tensor.data_ptr()
                else:
                    copies[number] = recorded[number] = _copy_of(tensor, self.device)
            # Memory cached for earlier calls is not needed beside the recording's own.
            torch.cuda.empty_cache()
            made = list(recorded)
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self.graph.run_steps(self.steps, made, sizes, keep=self.result_numbers)
                finally:
                    graph.capture_end()
            results = [made[number] for number in self.computed if isinstance(made[number], torch.Tensor)]
            if any(each.device != self.device for each in results):
                raise RuntimeError("a part of the graph runs on another device")
        except RuntimeError as error:
            _log.info("the graph is not recorded: %s", error)
            self.is_off = True
            return None
        torch.cuda.current_stream().wait_stream(stream)
        kept = {
            number: made[number]
            for number in self.result_numbers & self.computed
            if isinstance(made[number], torch.Tensor) and not _is_same_memory(made[number], recorded, self.written)
        }
        small = [number for number, result in kept.items() if result.nbytes <= SMALL_RESULT]
        kind.copied_out |= set(small) if len(small) <= FEW_RESULTS else set()
        recording = _Recording(graph, addresses, copies, kept)
        kind.recordings.append(recording)
        return recording

    def replay(self, recording: _Recording, kind: _Kind, values: Values, sizes: Sizes) -> list[Any]:
        copies = recording.copies
        _copy_all([(copy, values[number]) for number, copy in copies.items()])
        recording.graph.replay()
        _copy_all([(values[number], copies[number]) for number in self.written if number in copies])
        for number, result in recording.results.items():
            values[number] = result.clone() if number in kind.copied_out else result.detach()
        for step in self.steps:
            if isinstance(step, NativeStep):
                for number, source in step.updated:
                    values[number] = values[source]
        return self.graph.end(values, sizes)


def _settings() -> tuple[object, ...]:
    """Global settings that torch's operators depend on: a recording is valid for their recorded values."""
    return (*float32_precision(), *[setting() for setting in _SETTINGS])


_SETTINGS = (
    torch._C._get_cublas_allow_bf16_reduced_precision_reduction,
    torch._C._get_cublas_allow_fp16_accumulation,
    torch._C._get_cublas_allow_fp16_reduced_precision_reduction,
    torch._C._get_cudnn_deterministic,
    torch._C._get_cudnn_enabled,
    torch._C._get_deterministic_algorithms,
)


def _without(step: NativeStep | TorchStep, made: set[int]) -> NativeStep | TorchStep | None:
    if isinstance(step, NativeStep):
        return step
    calls = tuple(call for call in step.calls if call.output not in made)
    return TorchStep(calls, step.dead) if calls else None


def _outputs(step: NativeStep | TorchStep) -> Sequence[int]:
    return step.outputs if isinstance(step, NativeStep) else [call.output for call in step.calls]


def _result_numbers(graph: CompiledGraph) -> frozenset[int]:
    """The values that are results, or bases of results."""
    return frozenset(each.value.number for each in graph.graph.results if isinstance(each.value, Value))


def _copy_all(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Copy the second tensor of each pair to the first: in one launch if they are on a GPU."""
    pairs = [distinct(*each) for each in pairs]
    near = [(target, source) for target, source in pairs if _is_on_gpu(target) and _is_on_gpu(source)]
    if near:
        targets, sources = zip(*near, strict=True)
        torch._foreach_copy_(targets, sources)
    for target, source in pairs:
        if not _is_on_gpu(source):
            target.copy_(unpinned(source), non_blocking=True)
        elif not _is_on_gpu(target):
            target.copy_(source)


def _is_odd(tensor: torch.Tensor) -> bool:
    """Whether a tensor is not a plain GPU tensor, and too large to be copied there in each call."""
    return not _is_on_gpu(tensor) and tensor.nbytes > SMALL_RESULT


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _copy_of(tensor: torch.Tensor, device: torch.device | None) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    target, source = distinct(made, tensor)
    target.copy_(source)
    return made


def _only_device(values: Values) -> torch.device | None:
    """The GPU that all tensors are on, except small ones on the CPU; None if there are several."""
    found = {value.device for value in values if isinstance(value, torch.Tensor) and _is_on_gpu(value)}
    return found.pop() if len(found) == 1 else None


def _is_same_memory(tensor: torch.Tensor, recorded: Values, written: set[int]) -> bool:
    return any(recorded[number].data_ptr() == tensor.data_ptr() for number in written)


_STREAMS: dict[int, torch.cuda.Stream] = {}


def _recording_stream(device: int) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
