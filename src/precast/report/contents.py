"""The content of a report as plain data: collected once, embedded in the page as JSON, and read back for comparison.

Lists refer to each other by position: a step to its nodes, a node to its line of the user's program. A text that many
steps share (twelve equal layers have one kernel) is stored once, in `Report.texts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

VERSION = 1
"""The version of this format: pages of another version cannot be compared."""


@dataclass(frozen=True)
class Line:
    """A line of the user's program."""

    file: str
    number: int
    function: str
    code: str


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file around those that nodes come from, from line ``start`` on."""

    file: str
    start: int
    lines: tuple[str, ...]


@dataclass(frozen=True)
class Node:
    """A node of a graph; ``label`` is the user's own name for it, if it has one."""

    name: str
    kind: str
    operator: str
    value: str
    inputs: tuple[int, ...]
    arguments: str = ""
    module: str = ""
    line: int | None = None
    label: str = ""
    forward: str = ""
    size: int = 0
    flops: int = 0
    steps: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """A kernel, a library call, or an eager fallback: what it does, its cost, and its code at every stage."""

    kind: str
    name: str
    operators: tuple[str, ...]
    nodes: tuple[int, ...]
    lines: tuple[int, ...]
    module: str
    segment: int
    moved: int
    flops: int
    times: int
    loops: int | None
    code: int | None
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    calls: int = 0
    seconds: float = 0.0
    mean_seconds: float = 0.0


@dataclass(frozen=True)
class Buffer:
    """Memory that steps use: its lifetime, and for temporaries the offset in the arena."""

    name: str
    value: str
    kind: str
    size: int
    segment: int
    first: int
    last: int
    offset: int | None = None


@dataclass(frozen=True)
class Graph:
    """One graph and the steps that it became, in execution order."""

    name: str
    kind: str
    nodes: tuple[Node, ...]
    steps: tuple[Step, ...] = ()
    buffers: tuple[Buffer, ...] = ()
    arenas: tuple[int, ...] = ()
    """The size of the arena of each native segment."""


@dataclass(frozen=True)
class Saved:
    """A tensor that is saved for the backward, and why it is not recomputed."""

    name: str
    size: int
    reason: str
    line: int | None


@dataclass(frozen=True)
class Recomputed:
    """An operator that the backward recomputes, and why."""

    name: str
    operator: str
    reason: str
    flops: int
    moved: int
    line: int | None


@dataclass(frozen=True)
class Partition:
    """What is saved and what is recomputed, for one training graph."""

    graph: str
    saved_bytes: int
    default_bytes: int
    allowed_bytes: int
    saved: tuple[Saved, ...]
    recomputed: tuple[Recomputed, ...]


@dataclass(frozen=True)
class Variant:
    """One compiled variant of the function, and its guards."""

    name: str
    reason: str
    seconds: float
    inputs: tuple[str, ...]
    guards: tuple[str, ...]
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class Break:
    """A graph break or eager fallback: where, why, and how to avoid it."""

    kind: str
    name: str
    graph: str
    at: str
    why: str
    fix: str


@dataclass(frozen=True)
class Region:
    """A part of a function that is not one graph."""

    name: str
    is_in_python: bool


@dataclass(frozen=True)
class Pass:
    """A pass over a graph or a loop program: its duration, and the nodes or steps that it removed and added.

    ``before`` and ``after`` count all nodes or steps, ``gone`` and ``new`` those that differ, of which the first are
    shown.
    """

    name: str
    level: str
    graph: str
    seconds: float
    is_changing: bool
    before: int
    after: int
    gone: int
    new: int
    removed: tuple[int, ...] = ()
    added: tuple[int, ...] = ()


@dataclass(frozen=True)
class Stage:
    """A phase of the compilation: its thread, its start and its duration."""

    name: str
    graph: str
    thread: int
    started: float
    seconds: float
    detail: str = ""


@dataclass(frozen=True)
class Peak:
    """The peak performance of the machine."""

    threads: int
    flops_a_second: float
    bytes_a_second: float


@dataclass(frozen=True)
class Timing:
    """Whole calls, with gradients if the report is of training: the shortest of several."""

    calls: int
    compiled: float
    eager: float | None


@dataclass(frozen=True)
class Tensor:
    """An input, output or weight of a package."""

    name: str
    value: str


@dataclass(frozen=True)
class Entry:
    """An entry of a package: its calling convention."""

    name: str
    signature: str
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    updates: tuple[Tensor, ...]
    sizes: tuple[str, ...]
    weights: int
    samples: int


@dataclass(frozen=True)
class Target:
    """A kind of processor that a package has code for, and the features that this machine lacks."""

    name: str
    size: int
    features: tuple[str, ...]
    missing: tuple[str, ...]


@dataclass(frozen=True)
class Weight:
    """A tensor of a package's state."""

    name: str
    value: str
    size: int
    storage: str


@dataclass(frozen=True)
class Package:
    """A file that runs without torch."""

    path: str
    size: int
    is_signed: bool
    entries: tuple[Entry, ...]
    targets: tuple[Target, ...]
    libraries: tuple[str, ...]
    files: dict[str, int]
    weights: tuple[Weight, ...]


@dataclass(frozen=True)
class Report:
    """Everything that one page shows of one model."""

    title: str
    kind: str
    created: str
    made_with: dict[str, str]
    options: dict[str, str] = field(default_factory=dict)
    modules: dict[str, str] = field(default_factory=dict)
    """Path → class, of the modules that nodes come from."""
    lines: tuple[Line, ...] = ()
    excerpts: tuple[Excerpt, ...] = ()
    texts: tuple[str, ...] = ()
    graphs: tuple[Graph, ...] = ()
    partitions: tuple[Partition, ...] = ()
    variants: tuple[Variant, ...] = ()
    breaks: tuple[Break, ...] = ()
    regions: tuple[Region, ...] = ()
    passes: tuple[Pass, ...] = ()
    stages: tuple[Stage, ...] = ()
    peak: Peak | None = None
    timing: Timing | None = None
    package: Package | None = None
    version: int = VERSION
