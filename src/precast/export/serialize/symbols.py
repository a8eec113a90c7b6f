"""Size symbols as JSON, and fake values over the restored symbols.

Symbols are redeclared under their original sources, in the same order; expressions use the file's names. So a file
remains valid if another version of torch names symbols differently.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from precast.artifact.schema import Json, damaged
from precast.graph.expressions import expression_from_json, expression_to_json
from precast.graph.sizes import SizeGuard, SizeRange, SizeSymbol, SymbolicSizes
from precast.trace.fake_inputs import FakeInputs

MAX_UNBACKED = 10_000


def sizes_to_json(sizes: SymbolicSizes, hints: dict[str, int]) -> dict[str, Json]:
    """The symbols with their ranges and example sizes, and the guards."""
    symbols: list[Json] = [
        {**symbol_to_json(symbol), "example": hints.get(str(symbol.symbol.name))} for symbol in sizes.symbols
    ]
    # A guard on a symbol that was replaced by another is expressed in terms of that one, too.
    declared = {symbol.symbol for symbol in sizes.symbols}
    kept = [guard for guard in sizes.guards if guard.condition.free_symbols <= declared]
    guards: list[Json] = [{"condition": expression_to_json(guard.condition), "at": guard.at} for guard in kept]
    return {"symbols": symbols, "guards": guards}


def symbol_to_json(symbol: SizeSymbol) -> dict[str, Json]:
    bounds: list[Json] = [symbol.range.lower, symbol.range.upper]
    return {"symbol": str(symbol.symbol.name), "name": symbol.name, "seen_at": symbol.seen_at, "range": bounds}


@dataclass(frozen=True)
class LoadedSizes:
    """The file's symbols in a new shape environment, and methods to make fake values over them."""

    fakes: FakeInputs
    sizes: SymbolicSizes
    symbols: dict[str, sympy.Symbol]
    hints: dict[sympy.Symbol, int]

    @property
    def shape_env(self) -> ShapeEnv:
        shape_env = self.fakes.mode.shape_env
        assert shape_env is not None, "our fake modes have a shape environment"
        return shape_env

    def integer(self, content: Json) -> int | torch.SymInt:
        """A size: a number, or a symbolic integer."""
        if isinstance(content, int) and not isinstance(content, bool):
            return content
        expression = expression_from_json(content, self.symbols)
        made: int | torch.SymInt = self._node("create_symintnode", expression)
        return made

    def number(self, kind: str, content: Json) -> Any:
        """A symbolic integer, float or boolean."""
        expression = expression_from_json(content, self.symbols)
        if kind == "SymBool":
            return self.shape_env.create_symboolnode(expression)
        return self._node({"SymInt": "create_symintnode", "SymFloat": "create_symfloatnode"}[kind], expression)

    def _node(self, maker: str, expression: sympy.Basic) -> Any:
        hint = None
        if expression.free_symbols <= self.hints.keys():
            value = expression.xreplace({symbol: sympy.Integer(size) for symbol, size in self.hints.items()})
            hint = float(value) if maker == "create_symfloatnode" else int(value)
        return getattr(self.shape_env, maker)(expression, hint=hint)


def sizes_from_json(content: Any) -> LoadedSizes:
    """Declare the symbols of a file."""
    fakes = FakeInputs()
    symbols: dict[str, sympy.Symbol] = {}
    hints: dict[sympy.Symbol, int] = {}
    for record in content["symbols"]:
        if record["example"] is None:
            continue
        lower, upper = _range(record["range"])
        fakes.declare(
            record["name"], example=record["example"], seen_at=record["seen_at"], size_range=SizeRange(lower, upper)
        )
    declared = {symbol.name: symbol for symbol in fakes.sizes().symbols}
    for record in content["symbols"]:
        if record["example"] is not None:
            symbols[record["symbol"]] = declared[record["name"]].symbol
            hints[declared[record["name"]].symbol] = record["example"]
    if len(symbols) != len(declared):
        raise damaged("two sizes have one name", "names of sizes must differ")
    unbacked = [record for record in content["symbols"] if record["example"] is None]
    symbols |= _unbacked_symbols(fakes, unbacked)
    symbols |= _unbacked_floats(fakes, content.get("float_symbols", ()))
    kept = [
        SizeSymbol(symbols[record["symbol"]], record["name"], record["seen_at"], SizeRange(*_range(record["range"])))
        for record in content["symbols"]
    ]
    guards = [SizeGuard(expression_from_json(g["condition"], symbols), g["at"]) for g in content["guards"]]
    guards = [guard for guard in guards if guard.condition is not sympy.true]
    return LoadedSizes(fakes, SymbolicSizes(tuple(kept), tuple(guards)), symbols, hints)


def _range(content: list[Any]) -> tuple[int, int | None]:
    if len(content) != 2 or not isinstance(content[0], int) or (content[1] is not None and content[1] < content[0]):
        raise damaged("the range of a size is malformed", f"it is {content}")
    return content[0], content[1]


def _unbacked_floats(fakes: FakeInputs, names: Sequence[str]) -> dict[str, sympy.Symbol]:
    shape_env = fakes.mode.shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    last = max((int(name.removeprefix("zuf")) for name in names), default=-1)
    if last >= MAX_UNBACKED:
        raise damaged("a number has an invalid name", f"it is {names[-1]}")
    with fakes.unrecorded():
        made = {str(number.node.expr): number.node.expr for number in _floats(shape_env, last + 1)}
    return {name: made[name] for name in names}


def _floats(shape_env: ShapeEnv, count: int) -> list[torch.SymFloat]:
    return [shape_env.create_unbacked_symfloat() for _ in range(count)]


def _unbacked_symbols(fakes: FakeInputs, records: list[Any]) -> dict[str, sympy.Symbol]:
    """Unbacked symbols, with the numbers that they had."""
    shape_env = fakes.mode.shape_env
    assert shape_env is not None, "our fake modes have a shape environment"
    symbols: dict[str, sympy.Symbol] = {}
    wanted = {record["symbol"]: record for record in records}
    with fakes.unrecorded():
        for _ in range(MAX_UNBACKED if wanted else 0):
            made = shape_env.create_unbacked_symint().node.expr
            if str(made) in wanted:
                lower, upper = _range(wanted[str(made)]["range"])
                shape_env.var_to_range[made] = ValueRanges(lower, int_oo if upper is None else upper)
                symbols[str(made)] = made
            if len(symbols) == len(wanted):
                return symbols
    if wanted:
        raise damaged("a size has an invalid name", f"these are unknown: {sorted(set(wanted) - set(symbols))[:3]}")
    return symbols
