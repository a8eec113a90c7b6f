"""One loop nest as a Triton kernel.

Before::

    for i0 < 512:
      for i1 < 768:  total <- sum x[i0, i1]
      for i1 < 768:  y[i0, i1] = x[i0, i1] - total / 768

After::

    x = tl.program_id(0)
    r0 = tl.arange(0, 1024)
    r0_mask = r0 < 768
    t0 = tl.load(p0 + (r0 + x * 768), mask=r0_mask)
    total = tl.sum(tl.where(r0_mask, t0, 0.0), 0)
    tl.store(p1 + (r0 + x * 768), t0 - …, mask=r0_mask)

Each value is computed once: an expression whose text occurred before already has a name. Loaded and stored values
remain known until memory may have changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from precast.artifact.dtypes import DTYPES
from precast.native.loops.buffers import Buffer
from precast.native.loops.canonical import kernel_parameters
from precast.native.loops.index import Atom, Computed, Index, Symbol, Variable, atoms, product
from precast.native.loops.program import Accumulate, Kernel, Loop, Statement, Store, loads_of, stores_of
from precast.native.loops.scalars import (
    Accumulated,
    Accumulator,
    Apply,
    Cast,
    Constant,
    IndexValue,
    Load,
    Named,
    Scalar,
    walk,
)
from precast.native.targets.cuda.codegen.operations import operation_text
from precast.native.targets.cuda.codegen.reductions import combined, neutral, reduced
from precast.native.targets.cuda.codegen.tiling import SHORT, Tiling, leaf_loops, power_of_two
from precast.native.targets.cuda.codegen.types import HALF_TYPES, TRITON_TYPES, index_text, literal
from precast.native.targets.cuda.codegen.widths import needs_64_bits


@dataclass(frozen=True)
class _Value:
    """A name or a short text, and the block dimensions (x, r) along which it varies."""

    text: str
    dims: frozenset[str] = frozenset()


@dataclass
class _Memory:
    """What was read and written since the last barrier of a program's threads."""

    read: set[Buffer] = field(default_factory=set)
    written: set[Buffer] = field(default_factory=set)


class NestWriter:
    """Prints the body of a kernel whose top level is one loop without accumulators, or statements without a loop."""

    def __init__(self, kernel: Kernel, tiling: Tiling, block: str = "tl.program_id(0)"):
        """`block` is the expression of the block number of a program."""
        self.kernel, self.tiling, self.block = kernel, tiling, block
        self.buffers, self.sizes = kernel_parameters(kernel)
        self.pointers = {buffer: f"p{number}" for number, buffer in enumerate(self.buffers)}
        self.names: dict[Atom, str] = {Symbol(size): f"n{number}" for number, size in enumerate(self.sizes)}
        self.dims: dict[Atom, frozenset[str]] = {}
        self.lines: list[str] = []
        self.depth = 1
        self.count = 0
        self.known: list[dict[str, _Value]] = [{}]
        self.accumulators: dict[Accumulator, _Value] = {}
        self.memory = _Memory()
        self.is_vector = False
        self.widened, self.integer = (".to(tl.int64)", "tl.int64") if needs_64_bits(kernel) else ("", "tl.int32")
        self.masks: dict[str, str] = {}
        self.ranges: dict[tuple[Index, ...], str] = {}
        self.shapes: dict[str, int] = {"x": tiling.x_block}
        self.variables, self.body = _outer(kernel)

    def write(self) -> list[str]:
        self.outer_variables()
        self.statements(self.body)
        return self.lines

    # Lines and names

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def fresh(self, prefix: str = "t") -> str:
        self.count += 1
        return f"{prefix}{self.count - 1}"

    @contextmanager
    def scope(self) -> Iterator[None]:
        self.known.append({})
        self.depth += 1
        yield
        self.depth -= 1
        self.known.pop()

    def named(self, text: str, dims: frozenset[str]) -> _Value:
        """The name of an expression's value, which is computed if it is new."""
        if text.isidentifier():
            return _Value(text, dims)
        for scope in reversed(self.known):
            if text in scope:
                return scope[text]
        value = _Value(self.fresh(), dims)
        self.line(f"{value.text} = {text}")
        self.known[-1][text] = value
        return value

    # Blocks

    def outer_variables(self) -> None:
        count, tiling = product(variable.extent for variable in self.variables), self.tiling
        if not self.variables:
            return
        program = self.block + self.widened
        if tiling.x_block == 1:
            self.line(f"x = {program}")
        else:
            lanes = f"tl.arange(0, {tiling.x_block})" + ("[:, None]" if tiling.r_block else "")
            self.line(f"x = {program} * {tiling.x_block} + {lanes}")
            if count.constant is None or count.constant % tiling.x_block:
                self.line(f"x_mask = x < {self.scalar_text(count)}")
                self.masks["x"] = "x_mask"
        dims = frozenset({"x"}) if tiling.x_block > 1 else frozenset()
        self.spread(self.variables, "x", dims)

    def spread(self, variables: tuple[Variable, ...], name: str, dims: frozenset[str]) -> None:
        """Compute loop variables from the linear index of their iteration."""
        left = name
        for variable in reversed(variables[1:]):
            extent = self.scalar_text(variable.extent)
            self.bind(variable, f"({left}) % ({extent})", dims)
            left = f"({left}) // ({extent})"
        self.bind(variables[0], left, dims)

    def bind(self, variable: Variable, text: str, dims: frozenset[str]) -> None:
        self.names[variable] = self.named(text, dims).text
        self.dims[variable] = dims

    def scalar_text(self, index: Index) -> str:
        return index_text(index, self.names)

    def mask(self, dims: frozenset[str]) -> list[str]:
        return [self.masks[dim] for dim in sorted(dims) if dim in self.masks]

    def shape(self, dims: frozenset[str]) -> str:
        """The shape of a block that varies along these dimensions."""
        if self.tiling.r_block == 0 or self.tiling.is_row:
            (name,) = dims or {"x"}
            return f"({self.shapes[name]},)"
        return f"({self.shapes['x'] if 'x' in dims else 1}, {self.shapes['r'] if 'r' in dims else 1})"

    # Statements

    def statements(self, body: Sequence[Statement]) -> None:
        for statement in body:
            match statement:
                case Store():
                    self.store(statement)
                case Accumulate():
                    self.accumulate(statement)
                case Loop():
                    self.loop(statement)

    def loop(self, loop: Loop) -> None:
        is_leaf = not any(isinstance(each, Loop) for each in loop.body)
        if not self.tiling.r_block or not is_leaf or self.is_short(loop):
            self.one_by_one(loop)
            return
        self.is_vector = True
        if self.tiling.is_persistent:
            self.persistent(loop)
        else:
            self.blocks(loop)
        self.is_vector = False
        self.masks.pop("r", None)

    def is_short(self, loop: Loop) -> bool:
        """Whether another loop is vectorized here."""
        length = product(variable.extent for variable in loop.variables).constant
        others = [product(each.extent for each in leaf.variables).constant for leaf in leaf_loops(self.body)]
        return length is not None and length <= SHORT and any(each is None or each > SHORT for each in others)

    def one_by_one(self, loop: Loop) -> None:
        for each in loop.accumulators:
            self.start(each, self.active_dims)
        before = len(self.known)
        for variable in loop.variables:
            counter, name = self.fresh("k"), self.fresh("i")
            extent = variable.extent.constant
            span = "tl.static_range" if extent is not None and extent <= SHORT else "range"
            self.line(f"for {counter} in {span}(0, {self.scalar_text(variable.extent)}):")
            self.names[variable], self.dims[variable] = name, frozenset()
            self.known.append({})
            self.depth += 1
            # The counter of an unrolled loop is a Python number.
            self.line(f"{name} = tl.full((), {counter}, {self.integer})")
        self.begin_iteration(loop)
        self.statements(loop.body)
        self.depth -= len(loop.variables)
        del self.known[before:]
        self.forget_loads()

    def begin_iteration(self, loop: Loop) -> None:
        """A barrier, if another thread may read in the next iteration what this one writes."""
        self.forget_loads()
        read = {load.buffer for load in loads_of(loop.body)}
        if read & {store.buffer for store in stores_of(loop.body)} or self.memory.written & read:
            self.wait()

    def persistent(self, loop: Loop) -> None:
        extents = tuple(variable.extent for variable in loop.variables)
        count = product(extents)
        assert count.constant is not None, "rows of dynamic length are processed block by block"
        if extents not in self.ranges:
            name = self.ranges[extents] = f"r{len(self.ranges)}"
            block = power_of_two(count.constant)
            self.line(f"{name} = {self.lanes(block)}")
            if block != count.constant:
                self.line(f"{name}_mask = {name} < {count.constant}")
        name = self.ranges[extents]
        self.shapes["r"] = power_of_two(count.constant)
        self.masks.pop("r", None)
        if self.shapes["r"] != count.constant:
            self.masks["r"] = f"{name}_mask"
        if not count.constant:
            for each in loop.accumulators:
                self.start(each, frozenset())
            return
        self.spread(loop.variables, name, frozenset({"r"}))
        self.statements(loop.body)

    def blocks(self, loop: Loop) -> None:
        count, block = product(variable.extent for variable in loop.variables), self.tiling.r_block
        self.shapes["r"] = block
        for each in loop.accumulators:
            self.start(each, self.active_dims)
        start, name = self.fresh("start"), self.fresh("r")
        self.line(f"for {start} in range(0, {self.scalar_text(count)}, {block}):")
        with self.scope():
            self.begin_iteration(loop)
            self.line(f"{name} = {start} + {self.lanes(block)}")
            if count.constant is None or count.constant % block:
                self.line(f"{name}_mask = {name} < {self.scalar_text(count)}")
                self.masks["r"] = f"{name}_mask"
            self.spread(loop.variables, name, frozenset({"r"}))
            self.statements(loop.body)
        self.forget_loads()
        for each in loop.accumulators:
            self.finish(each)

    def lanes(self, block: int) -> str:
        return f"tl.arange(0, {block})" + ("" if self.tiling.is_row else "[None, :]") + self.widened

    # Accumulators

    def start(self, accumulator: Accumulator, dims: frozenset[str]) -> None:
        name = self.fresh("a")
        text = literal(neutral(accumulator), accumulator.dtype)
        if dims:
            number = text.removeprefix("tl.full((), ")
            text = f"tl.full({self.shape(dims)}, {number}"
        self.line(f"{name} = {text}")
        self.accumulators[accumulator] = _Value(name, dims)

    def finish(self, accumulator: Accumulator) -> None:
        """Reduce the lanes' partial results."""
        value = self.accumulators[accumulator]
        self.accumulators[accumulator] = self.reduced(accumulator, value)

    def reduced(self, accumulator: Accumulator, value: _Value) -> _Value:
        axis = 0 if self.tiling.is_row else 1
        name = self.fresh("a")
        column = "" if self.tiling.is_row else "[:, None]"
        self.line(f"{name} = {reduced(accumulator, value.text, axis)}{column}")
        return _Value(name, value.dims - {"r"})

    def accumulate(self, statement: Accumulate) -> None:
        accumulator, value = statement.accumulator, self.value(statement.value)
        total = self.accumulators.get(accumulator)
        if not self.is_vector:
            assert total is not None, "the loop around declared it"
            self.line(f"{total.text} = {combined(accumulator, total.text, value.text)}")
            return
        tile, text = self.active_dims, value.text
        if value.dims != tile:
            text = f"tl.broadcast_to({text}, {self.shape(tile)})"
        if masks := self.mask(frozenset({"r"})):
            text = f"tl.where({' & '.join(masks)}, {text}, {literal(neutral(accumulator), accumulator.dtype)})"
        masked = self.named(text, tile)
        if total is not None and "r" in total.dims:
            self.line(f"{total.text} = {combined(accumulator, total.text, masked.text)}")
            return
        part = self.reduced(accumulator, masked)
        if total is None:
            self.accumulators[accumulator] = part
        else:
            self.line(f"{total.text} = {combined(accumulator, total.text, part.text)}")

    # Memory

    def wait(self) -> None:
        """A barrier for all threads of the program."""
        self.line("tl.debug_barrier()")
        self.memory = _Memory()

    def forget_loads(self) -> None:
        for scope in self.known:
            for text in [text for text in scope if text.startswith("tl.load(")]:
                del scope[text]

    def place(self, buffer: Buffer, indices: tuple[Index, ...]) -> _Value:
        """A pointer to an element, or a block of pointers."""
        offset = buffer.offset(indices)
        text, dims = self.subscript(offset)
        return _Value(self.pointers[buffer] if text == "0" else f"{self.pointers[buffer]} + ({text})", dims)

    def subscript(self, index: Index) -> tuple[str, frozenset[str]]:
        names, dims = dict(self.names), set[str]()
        for each in atoms(index):
            if isinstance(each, Computed):
                value = self.value(each.value)
                names[each] = value.text if each.value.dtype == "i64" else f"{value.text}.to(tl.int64)"
                dims |= value.dims
        for each in _plain_atoms(index):
            dims |= self.dims.get(each, frozenset())
        return index_text(index, names), frozenset(dims)

    def load(self, load: Load, guard: _Value | None) -> _Value:
        place = self.place(load.buffer, load.indices)
        dims = place.dims | (guard.dims if guard else frozenset())
        pointer, masks = place.text, self.mask(dims) + ([guard.text] if guard else [])
        if dims != place.dims:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(dims)})"
        mask = f", mask={' & '.join(masks)}" if masks else ""
        other = ", other=0" if guard else ""
        text = f"tl.load({pointer}{mask}{other})"
        if load.buffer in self.memory.written and not any(text in scope for scope in self.known):
            self.wait()
        self.memory.read.add(load.buffer)
        value = self.named(text, dims)
        if load.buffer.dtype in HALF_TYPES:
            return self.named(f"{value.text}.to(tl.float32)", dims)
        return self.named(f"{value.text} != 0", dims) if load.buffer.dtype == "bool" else value

    def store(self, store: Store) -> None:
        value = self.value(store.value)
        guard = None if store.guard is None else self.value(store.guard)
        place = self.place(store.buffer, store.indices)
        dims = place.dims | value.dims | (guard.dims if guard else frozenset())
        if store.indices and any(index.computed for index in store.indices):
            dims |= self.active_dims
        pointer = place.text
        if dims != place.dims and dims:
            pointer = f"tl.broadcast_to({pointer}, {self.shape(dims)})"
        masks = self.mask(dims) + ([guard.text] if guard else [])
        mask = f", mask={' & '.join(masks)}" if masks else ""
        if store.buffer in self.memory.read or (store.buffer in self.memory.written and not store.is_plain):
            self.wait()
        stored = _stored_text(value.text, store.buffer.dtype)
        if store.combine is not None:
            if dims and value.dims != dims:
                stored = f"tl.broadcast_to({stored}, {self.shape(dims)})"
            self.line(f"tl.atomic_add({pointer}, {stored}{mask}, sem='relaxed')")
        else:
            self.line(f"tl.store({pointer}, {stored}{mask})")
        self.forget_buffer(store.buffer)
        self.memory.written.add(store.buffer)
        if store.is_plain and guard is None and value.dims == dims:
            self.remember(store.buffer, f"tl.load({place.text}{mask})", value)

    @property
    def active_dims(self) -> frozenset[str]:
        """The block dimensions whose lanes are iterations of the enclosing loops."""
        return frozenset(({"x"} if self.tiling.x_block > 1 else set()) | ({"r"} if self.is_vector else set()))

    def forget_buffer(self, buffer: Buffer) -> None:
        pointer = self.pointers[buffer]
        for scope in self.known:
            for text in list(scope):
                if text.startswith((f"tl.load({pointer} ", f"tl.load({pointer},", f"tl.load({pointer})")) or (
                    text.startswith("tl.load(tl.broadcast_to(") and f"({pointer} " in text
                ):
                    del scope[text]

    def remember(self, buffer: Buffer, text: str, value: _Value) -> None:
        """Record a stored value for later loads: 16-bit floats and bool have another form in memory."""
        raw = _Value(self.fresh(), value.dims)
        if buffer.dtype in HALF_TYPES:
            self.known[-1][text] = raw
            self.known[-1][f"{raw.text}.to(tl.float32)"] = value
        elif buffer.dtype == "bool":
            self.known[-1][text] = raw
            self.known[-1][f"{raw.text} != 0"] = value
        else:
            self.known[-1][text] = value

    # Values

    def value(self, root: Scalar) -> _Value:
        values: dict[int, _Value] = {}
        for scalar in walk(root):
            values[id(scalar)] = self.compute(scalar, values)
        return values[id(root)]

    def compute(self, scalar: Scalar, values: dict[int, _Value]) -> _Value:
        match scalar:
            case Load(_, _, guard):
                return self.load(scalar, None if guard is None else values[id(guard)])
            case Constant(number, dtype):
                return self.named(literal(number, dtype), frozenset())
            case IndexValue(index, dtype):
                return self.index_value(index, dtype)
            case Apply(operation, arguments, dtype):
                operands = [values[id(each)] for each in arguments]
                dims = frozenset().union(*(each.dims for each in operands))
                own = dtype if operation == "where" else arguments[0].dtype
                return self.named(operation_text(operation, [each.text for each in operands], own), dims)
            case Cast(inner, dtype):
                value = values[id(inner)]
                text = _cast_text(value.text, inner.dtype, dtype)
                return value if text == value.text else self.named(text, value.dims)
            case Named(_, inner):
                return values[id(inner)]
            case Accumulated(accumulator):
                return self.accumulators[accumulator]

    def index_value(self, index: Index, dtype: str) -> _Value:
        if index.constant is not None:
            return self.named(literal(index.constant, dtype), frozenset())
        text, dims = self.subscript(index)
        if dtype in HALF_TYPES:
            return self.named(f"({text}).to({HALF_TYPES[dtype]}).to(tl.float32)", dims)
        return self.named(f"({text}).to({TRITON_TYPES[dtype]})", dims)


def _outer(kernel: Kernel) -> tuple[tuple[Variable, ...], tuple[Statement, ...]]:
    match kernel.body:
        case (Loop(variables, body, ()),):
            return variables, body
    return (), kernel.body


def _plain_atoms(index: Index) -> Iterator[Atom]:
    """The atoms that an index depends on, not looking into computed subscripts."""
    for monomial, _ in index.terms:
        for factor in monomial:
            yield factor
            for name in ("numerator", "denominator", "first", "second"):
                part = getattr(factor, name, None)
                if isinstance(part, Index):
                    yield from _plain_atoms(part)


def _stored_text(text: str, dtype: str) -> str:
    if dtype in HALF_TYPES:
        return f"{text}.to({HALF_TYPES[dtype]})"
    return f"{text}.to(tl.uint8)" if dtype == "bool" else text


def _cast_text(text: str, source: str, dtype: str) -> str:
    if dtype == "bool":
        return f"{text} != 0"
    if dtype in HALF_TYPES:
        single = text if TRITON_TYPES[source] == "tl.float32" else f"{text}.to(tl.float32)"
        return f"{single}.to({HALF_TYPES[dtype]}).to(tl.float32)"
    if TRITON_TYPES[source] == TRITON_TYPES[dtype]:
        return text
    if DTYPES[source].is_floating and dtype in ("u8", "i8", "i16"):
        return f"{text}.to(tl.int64).to({TRITON_TYPES[dtype]})"
    return f"{text}.to({TRITON_TYPES[dtype]})"
