"""CUDA graphs: what a compiled graph launches is recorded once, and then put into a stream as a whole.

A recording reads and writes fixed memory, so each call looks first:

- inputs that come at the address that was recorded are read there; others are copied to where they were recorded;
- results stay where they were recorded as long as somebody holds them: then another recording is used, or made, or the
  graph is run as it is. What a caller was given is never written into;
- random seeds are drawn as in every call, and copied to where kernels read them.

Memory of a recording comes from a pool of torch's allocator, which is given back when it is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from precast.native.call import CompiledGraph, NativeStep, OperatorCall, Sizes, TorchStep, Value, Values
from precast.native.targets.cuda.run import GpuEntry
from precast.ops.own_operators import random_seed, random_stream

_log = logging.getLogger("precast.cuda")

CALLS_BEFORE = 2
"""So many calls run as they are: libraries set themselves up, and inputs show whether they stay where they are."""
PATIENCE = 6
"""After so many calls a recording is made even if large inputs still move."""
MOST_RECORDINGS = 4
"""For one kind of call; results of several calls may be held at a time."""
MOST_KINDS = 8
"""Of sizes that recordings are made for."""
MOST_ATTEMPTS = 16
LARGE = 2**20
"""Inputs of fewer bytes are copied rather than recorded again."""
SMALL_RESULT = 4096
FEW_RESULTS = 8
"""A few small results are copied for the caller: a loss is often kept."""

_DEVICE = "cuda"
_ON_HOST = (random_seed, random_stream)


def may_be_recorded(graph: CompiledGraph) -> bool:
    """Whether all that a graph does could be in a recording, but for drawing seeds."""
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
    """One recorded run: where it reads its inputs, and what it fills."""

    graph: torch.cuda.CUDAGraph
    addresses: dict[int, int]
    copies: dict[int, torch.Tensor]
    results: dict[int, torch.Tensor]
    holders: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.storages = {number: result.untyped_storage() for number, result in self.results.items()}
        self.holders = {number: _holders(storage) for number, storage in self.storages.items()}

    def held(self) -> list[int]:
        """The results that somebody still holds."""
        return [number for number, storage in self.storages.items() if _holders(storage) > self.holders[number]]

    def reads(self, values: Values) -> bool:
        """Whether inputs are where they were recorded."""
        return all(values[number].data_ptr() == address for number, address in self.addresses.items())


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
    """Calls a compiled graph, by a recording where there is one that fits."""

    def __init__(self, graph: CompiledGraph):
        self.graph = graph
        self.is_off = False
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
        key = (torch.cuda.current_stream(), *_settings(), *sizes.values())
        kind = self.kinds.get(key)
        if kind is None:
            while len(self.kinds) >= MOST_KINDS:
                del self.kinds[next(iter(self.kinds))]
            kind = self.kinds[key] = _Kind()
        kind.calls += 1
        for call in self.host_calls:
            values[call.output] = call.run(values, sizes)
        recording = self.fitting(kind, values)
        if recording is None and self.may_record(kind, values):
            recording = self.record(kind, values, sizes)
        self.note(kind, values)
        if recording is None:
            return self.run(values, sizes)
        return self.replay(recording, kind, values, sizes)

    def run(self, values: Values, sizes: Sizes) -> list[Any]:
        self.graph.run_steps(self.steps, values, sizes)
        return self.graph.end(values, sizes)

    # Choosing

    def tensors(self, values: Values) -> dict[int, torch.Tensor]:
        numbers = (*range(self.graph.graph.inputs), *sorted(self.host_values))
        return {number: values[number] for number in numbers if isinstance(values[number], torch.Tensor)}

    def fitting(self, kind: _Kind, values: Values) -> _Recording | None:
        """A recording whose inputs are where they were, and whose results nobody holds."""
        for recording in list(kind.recordings):
            if not recording.reads(values):
                continue
            held = recording.held()
            if not held:
                return recording
            if len(held) <= FEW_RESULTS and len(kind.recordings) >= MOST_RECORDINGS:
                # The caller keeps these: from now on they are copied, and the caller has the memory to itself.
                kind.copied_out |= set(held)
                kind.recordings.remove(recording)
        return None

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
            # What is at other addresses again and again is copied.
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
        for number, tensor in self.tensors(values).items():
            is_still = kind.last.get(number) == tensor.data_ptr() and number not in kind.moving
            if _is_on_gpu(tensor) and (is_still or (tensor.nbytes >= LARGE and number not in kind.moving)):
                addresses[number] = tensor.data_ptr()
            else:
                copies[number] = recorded[number] = _copy_of(tensor)
        # What calls before this one used is not needed beside the recording's own memory.
        torch.cuda.empty_cache()
        graph, made = torch.cuda.CUDAGraph(), list(recorded)
        stream = _recording_stream(torch.cuda.current_device())
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                graph.capture_begin(capture_error_mode="thread_local")
                try:
                    self.graph.run_steps(self.steps, made, sizes, keep=self.result_numbers)
                finally:
                    graph.capture_end()
            if any(isinstance(made[number], torch.Tensor) and not _is_on_gpu(made[number]) for number in self.computed):
                raise RuntimeError("a part of the graph runs on the CPU")
        except RuntimeError as error:
            _log.info("the graph is not recorded: %s", error)
            self.is_off = True
            return None
        torch.cuda.current_stream().wait_stream(stream)
        results = {
            number: made[number]
            for number in self.result_numbers & self.computed
            if isinstance(made[number], torch.Tensor) and not _is_same_memory(made[number], recorded, self.written)
        }
        small = [number for number, result in results.items() if result.nbytes <= SMALL_RESULT]
        kind.copied_out |= set(small) if len(small) <= FEW_RESULTS else set()
        recording = _Recording(graph, addresses, copies, results)
        kind.recordings.append(recording)
        return recording

    def replay(self, recording: _Recording, kind: _Kind, values: Values, sizes: Sizes) -> list[Any]:
        for number, copy in recording.copies.items():
            copy.copy_(values[number], non_blocking=True)
        recording.graph.replay()
        for number in self.written:
            if number in recording.copies:
                values[number].copy_(recording.copies[number])
        for number, result in recording.results.items():
            values[number] = result.clone() if number in kind.copied_out else result.detach()
        for step in self.steps:
            if isinstance(step, NativeStep):
                for number, source in step.updated:
                    values[number] = values[source]
        return self.graph.end(values, sizes)


def _settings() -> tuple[object, ...]:
    """What torch's operators look at when they run: a recording has what they did then."""
    return (
        torch._C._get_cublas_allow_tf32(),
        torch._C._get_cudnn_allow_tf32(),
        torch._C._get_cudnn_deterministic(),
        torch._C._get_deterministic_algorithms(),
    )


def _without(step: NativeStep | TorchStep, made: set[int]) -> NativeStep | TorchStep | None:
    if isinstance(step, NativeStep):
        return step
    calls = tuple(call for call in step.calls if call.output not in made)
    return TorchStep(calls, step.dead) if calls else None


def _outputs(step: NativeStep | TorchStep) -> Sequence[int]:
    return step.outputs if isinstance(step, NativeStep) else [call.output for call in step.calls]


def _result_numbers(graph: CompiledGraph) -> frozenset[int]:
    """The values that results are, or are views of."""
    return frozenset(each.value.number for each in graph.graph.results if isinstance(each.value, Value))


def _is_odd(tensor: torch.Tensor) -> bool:
    """Whether a tensor is no plain one on a GPU, and too large to be copied there each time."""
    return not _is_on_gpu(tensor) and tensor.nbytes > SMALL_RESULT


def _is_on_gpu(tensor: torch.Tensor) -> bool:
    return tensor.is_cuda


def _copy_of(tensor: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=_DEVICE)
    return made.copy_(tensor)


def _is_same_memory(tensor: torch.Tensor, recorded: Values, written: set[int]) -> bool:
    return any(recorded[number].data_ptr() == tensor.data_ptr() for number in written)


_STREAMS: dict[int, torch.cuda.Stream] = {}


def _recording_stream(device: int) -> torch.cuda.Stream:
    if device not in _STREAMS:
        _STREAMS[device] = torch.cuda.Stream(device)
    return _STREAMS[device]
