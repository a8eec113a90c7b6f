"""Programs for a GPU as JSON, and back: what is kept in the cache and goes into packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from precast.native.loops.expressions import index_from_json, index_to_json
from precast.native.loops.index import Index
from precast.native.loops.program import Finish, SizeSource
from precast.native.targets.cuda.launches import (
    Call,
    CallBack,
    GpuProgram,
    Launch,
    Place,
    RepeatPart,
    RunPart,
    Step,
    Window,
)

Json = dict[str, Any]


def program_to_json(program: GpuProgram) -> Json:
    """All of a program; expressions of sizes as files have them."""
    return {
        "name": program.name,
        "places": [_place(each) for each in program.places],
        "inputs": program.inputs,
        "outputs": program.outputs,
        "written": sorted(program.written),
        "sizes": [[each.symbol, each.position, each.dimension, each.factor, each.offset] for each in program.sizes],
        "arena": _number(program.arena_size),
        "steps": [_step(each) for each in program.steps],
        "dead": program.dead,
        "weights": program.weights,
        "by_torch": sorted(program.by_torch),
    }


def program_from_json(content: Mapping[str, Any]) -> GpuProgram:
    """The program that `program_to_json` told."""
    return GpuProgram(
        content["name"],
        tuple(_read_place(each) for each in content["places"]),
        tuple(content["inputs"]),
        tuple(content["outputs"]),
        frozenset(content["written"]),
        tuple(SizeSource(*each) for each in content["sizes"]),
        _read_number(content["arena"]),
        tuple(_read_step(each) for each in content["steps"]),
        tuple(tuple(each) for each in content["dead"]),
        tuple(content["weights"]),
        frozenset(content["by_torch"]),
    )


def _number(index: Index) -> Any:
    return index_to_json(index) if index.constant is None else index.constant


def _numbers(indices: Sequence[Index]) -> list[Any]:
    return [_number(each) for each in indices]


def _read_number(content: Any) -> Index:
    return index_from_json(content)


def _read_numbers(content: Sequence[Any]) -> tuple[Index, ...]:
    return tuple(map(index_from_json, content))


def _place(place: Place) -> list[Any]:
    layout = [_numbers(place.shape), _numbers(place.strides)]
    return [place.kind, place.number, _number(place.offset), place.dtype, *layout]


def _read_place(content: Sequence[Any]) -> Place:
    kind, number, offset, dtype, shape, strides = content
    return Place(kind, number, _read_number(offset), dtype, _read_numbers(shape), _read_numbers(strides))


def _window(window: Window) -> list[Any]:
    return [window.place, _numbers(window.shape), _numbers(window.strides), _number(window.offset)]


def _read_window(content: Sequence[Any]) -> Window:
    place, shape, strides, offset = content
    return Window(place, _read_numbers(shape), _read_numbers(strides), _read_number(offset))


def _step(step: Step) -> Json:
    match step:
        case Launch(kernel, programs, places, sizes):
            return {"launch": kernel, "programs": _number(programs), "places": places, "sizes": _numbers(sizes)}
        case Call(routine, inputs, outputs, numbers, epilogue):
            finishes = [[each.operation, each.operand] for each in epilogue]
            windows = {"inputs": [_window(each) for each in inputs], "outputs": [_window(each) for each in outputs]}
            return {"call": routine, **windows, "numbers": _numbers(numbers), "epilogue": finishes}
        case CallBack(number, inputs, outputs):
            return {"back": number, "inputs": inputs, "outputs": outputs}
        case RunPart(parts, inputs, outputs, choice):
            told = [program_to_json(each) for each in parts]
            return {"run": told, "inputs": inputs, "outputs": outputs, "choice": choice}
        case RepeatPart(parts, inputs, outputs, carried, scanned, count):
            told = [program_to_json(each) for each in parts]
            times = {"carried": carried, "scanned": scanned, "count": None if count is None else _number(count)}
            return {"repeat": told, "inputs": inputs, "outputs": outputs, **times}


def _read_step(content: Mapping[str, Any]) -> Step:
    if "launch" in content:
        places, sizes = tuple(content["places"]), _read_numbers(content["sizes"])
        return Launch(content["launch"], _read_number(content["programs"]), places, sizes)
    if "back" in content:
        return CallBack(content["back"], tuple(content["inputs"]), tuple(content["outputs"]))
    if "run" in content or "repeat" in content:
        return _read_parts(content)
    return Call(
        content["call"],
        tuple(_read_window(each) for each in content["inputs"]),
        tuple(_read_window(each) for each in content["outputs"]),
        _read_numbers(content["numbers"]),
        tuple(Finish(*each) for each in content["epilogue"]),
    )


def _read_parts(content: Mapping[str, Any]) -> RunPart | RepeatPart:
    parts = tuple(program_from_json(each) for each in content.get("run") or content["repeat"])
    inputs, outputs = tuple(content["inputs"]), tuple(content["outputs"])
    if "run" in content:
        return RunPart(parts, inputs, outputs, content["choice"])
    count = None if content["count"] is None else _read_number(content["count"])
    return RepeatPart(parts, inputs, outputs, content["carried"], content["scanned"], count)
