"""What one compilation needs to know, beside what it compiles."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from precast.autograd.ambient import Ambient
from precast.autograd.call_parts import Gradients
from precast.autograd.compilers_in_use import CompilersInUse
from precast.autograd.graph_names import Compilation
from precast.tracing.flat_function import FlatFunction

if TYPE_CHECKING:
    from precast.ir.boundary import BoundaryFacts


@dataclass(frozen=True)
class Job:
    """One compilation: with which compilers, under which name, and how gradients of gradients are come by.

    ``ambient`` tells the modes that hold now, to be entered when something is traced later.
    ``static_inputs`` are the inputs that live on between calls anyway (parameters, buffers).
    """

    compilers: CompilersInUse
    compilation: Compilation
    second_order: "Callable[[FlatFunction, BoundaryFacts], Gradients]"
    ambient: Callable[[], Ambient]
    static_inputs: tuple[int, ...] = ()
    module_names: Mapping[int, str] = field(default_factory=dict)
