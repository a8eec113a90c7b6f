"""A model ready to be called: entries by name, arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from precast.artifact.calls import CallDescription, size_identifier
from precast.artifact.manifest import EntryDescription
from precast.artifact.weights import Weight
from precast.errors import InputValueError
from precast.runtime.call import checked_leaves, result_of, write_back
from precast.runtime.entry import Entry, library_entries
from precast.runtime.native import FallbackFunction
from precast.runtime.state import NativeState, State
from precast.runtime.tensors import Tensor, as_in_memory, as_tensor, is_torch_tensor

if TYPE_CHECKING:
    from precast.runtime.verification import SampleCheck


class Runnable(Protocol):
    """What computes an entry: compiled code, or torch that interprets the program."""

    @property
    def description(self) -> EntryDescription: ...

    def run(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, repr=False)
class ModelEntry:
    """One program of a model, called as the original was; calls are checked first."""

    runnable: Runnable
    call: CallDescription

    @property
    def name(self) -> str:
        return self.runnable.description.name

    @property
    def description(self) -> EntryDescription:
        return self.runnable.description

    def __repr__(self) -> str:
        """The entry as its user sees it: ``forward(x: f32[batch, 4]) -> output: f32[batch, 2]``, then its sizes."""
        described = self.description
        inputs, outputs = (", ".join(map(str, each)) for each in (described.inputs, described.outputs))
        sizes = [f"{size_identifier(size.name)} in {size.range_text}" for size in self.call.symbols]
        return f"{self.name}({inputs}) -> {outputs or None}" + (f", {', '.join(sizes)}" if sizes else "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call
        leaves, sizes = checked_leaves(call, args, kwargs)
        given = [leaves[number] for number in call.tensor_leaves]
        tensors = [
            as_tensor(value, name=path) if isinstance(value, int) else as_in_memory(value) for path, value in given
        ]
        outputs = self.runnable.run(tensors, like_torch=any(map(is_torch_tensor, tensors)))
        write_back(call, leaves, outputs)
        return result_of(call, outputs, sizes)


class Model:
    """A loaded model: call it, or one of its entries by name; the entries share one state.

    Any number of threads may call one model at the same time.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry | Entry],
        state: State,
        *,
        verifier: Callable[[], tuple[SampleCheck, ...]] | None = None,
        target: str | None = None,
    ):
        self._entries = {entry.name: entry for entry in entries}
        self._state = state
        self._verifier = verifier
        self._target = target

    def __repr__(self) -> str:
        """The entries, one a line; how many tensors of state; which native code runs."""
        entries = "".join(f"\n  {entry!r}" for entry in self._entries.values())
        code = "interpreted by torch" if self._target is None else f"target {self._target}"
        return f"<precast.runtime.Model: {code}, {len(self._state)} tensors of state{entries}>"

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries, in the order in which they were packaged."""
        return tuple(self._entries)

    @property
    def state(self) -> State:
        """Weights and buffers by name; calls read them, and those that update buffers write them."""
        return self._state

    @property
    def target(self) -> str | None:
        """Which of the file's native code runs; ``None`` where no file's does."""
        return self._target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the entry ``forward``, or the first where there is none."""
        name = "forward" if "forward" in self._entries else next(iter(self._entries))
        return self._entries[name](*args, **kwargs)

    def __getitem__(self, name: str) -> ModelEntry | Entry:
        if name not in self._entries:
            raise KeyError(f"the model has no entry {name!r}; it has {', '.join(self._entries)}")
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def verify(self) -> tuple[SampleCheck, ...]:
        """Check every hash in the file, and run its samples here, on the state that it was packaged with.

        Gives what was compared; an ``ArtifactError`` tells what differs.
        """
        if self._verifier is None:
            raise InputValueError(
                "This model has nothing to verify.",
                why="it was not loaded from a file, and only files hold hashes and samples",
                fix="Package it with precast.package, and load that.",
            )
        return self._verifier()


def open_library(
    path: Path,
    *,
    needs: tuple[str, ...] = (),
    weights: Mapping[str, Tensor | Weight] | None = None,
    fallback: FallbackFunction | None = None,
) -> Model:
    """Open a model library that this machine built, in process."""
    entries = library_entries(path, needs=needs, weights=weights, fallback=fallback)
    return Model(entries, State(NativeState(entries[0].model)))
