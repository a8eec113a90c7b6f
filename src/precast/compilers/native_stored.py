"""What of a compiled graph is kept on disk: the library's key, where its sizes are read, and its fallback steps."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from precast.ir.loops.buffers import Buffer
from precast.ir.loops.index import Atom, Extreme, Index, Quotient, Remainder, Symbol
from precast.ir.loops.program import Argument, FallbackStep, LoopProgram, SizeSource, Slot


@dataclass(frozen=True)
class StoredGraph:
    """A built library, which others it needs, and of each entry what is called back: a program without kernels.

    `in_place` are, for each entry, the numbers of results that it does not return, but writes into inputs.
    """

    library: str
    needs: tuple[str, ...]
    programs: tuple[LoopProgram, ...]
    in_place: tuple[tuple[int, ...], ...]

    def to_bytes(self) -> bytes:
        programs = [_program_data(program) for program in self.programs]
        content = {"library": self.library, "needs": self.needs, "programs": programs, "in_place": self.in_place}
        return json.dumps(content).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StoredGraph:
        content = json.loads(data)
        programs, in_place = map(_program, content["programs"]), map(tuple, content["in_place"])
        return cls(content["library"], tuple(content["needs"]), tuple(programs), tuple(in_place))


def written_in_place(program: LoopProgram) -> tuple[int, ...]:
    """The numbers of the results that a fused program writes into inputs instead."""
    return tuple(number for number, result in enumerate(program.results) if result is None)


def called_back(program: LoopProgram) -> LoopProgram:
    """All that calling back needs to know of a program."""
    steps = tuple(step for step in program.steps if isinstance(step, FallbackStep))
    return LoopProgram(program.name, (), (), program.sizes, steps)


def _program_data(program: LoopProgram) -> dict[str, Any]:
    sizes = [[source.symbol, source.position, source.dimension] for source in program.sizes]
    steps = [_step_data(step) for step in program.steps if isinstance(step, FallbackStep)]
    return {"name": program.name, "sizes": sizes, "steps": steps}


def _program(content: dict[str, Any]) -> LoopProgram:
    sizes = tuple(SizeSource(*source) for source in content["sizes"])
    return LoopProgram(content["name"], (), (), sizes, tuple(map(_step, content["steps"])))


def _step_data(step: FallbackStep) -> dict[str, Any]:
    return {
        "name": step.name,
        "operator": step.operator,
        "inputs": [buffer.dtype for buffer in step.inputs],
        "outputs": [buffer.dtype for buffer in step.outputs],
        "arguments": _argument_data(step.arguments),
        "keywords": [[name, _argument_data(value)] for name, value in step.keyword_arguments],
        "at": step.at,
    }


def _step(content: dict[str, Any]) -> FallbackStep:
    # Shapes come with each call; of a buffer, only the type of its elements is needed.
    inputs, outputs = (tuple(Buffer("", dtype, (), ()) for dtype in content[key]) for key in ("inputs", "outputs"))
    keywords = tuple((name, _argument(value)) for name, value in content["keywords"])
    arguments = _argument(content["arguments"])
    assert isinstance(arguments, tuple)
    return FallbackStep(content["name"], content["operator"], inputs, outputs, arguments, keywords, at=content["at"])


def _argument_data(argument: Argument) -> Any:
    match argument:
        case Slot(position):
            return {"slot": position}
        case Index():
            return {"index": _index_data(argument)}
        case tuple():
            return list(map(_argument_data, argument))
    return argument


def _argument(content: Any) -> Argument:
    match content:
        case {"slot": position}:
            return Slot(position)
        case {"index": terms}:
            return _index(terms)
        case list():
            return tuple(map(_argument, content))
    plain: Argument = content
    return plain


def _index_data(index: Index) -> list[Any]:
    return [[list(map(_atom_data, monomial)), coefficient] for monomial, coefficient in index.terms]


def _index(terms: list[Any]) -> Index:
    return Index(tuple((tuple(map(_atom, monomial)), coefficient) for monomial, coefficient in terms))


def _atom_data(atom: Atom) -> Any:
    match atom:
        case Symbol(name):
            return name
        case Quotient(numerator, denominator):
            return ["//", _index_data(numerator), _index_data(denominator)]
        case Remainder(numerator, denominator):
            return ["%", _index_data(numerator), _index_data(denominator)]
        case Extreme(kind, first, second):
            return [kind, _index_data(first), _index_data(second)]
    raise AssertionError(f"{atom} cannot be a fallback's argument")


def _atom(content: Any) -> Atom:
    if isinstance(content, str):
        return Symbol(content)
    kind, first, second = content[0], _index(content[1]), _index(content[2])
    match kind:
        case "//":
            return Quotient(first, second)
        case "%":
            return Remainder(first, second)
    return Extreme(kind, first, second)
