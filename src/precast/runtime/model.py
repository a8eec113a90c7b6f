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
    """What runs an entry: compiled code, or torch's interpreter of the program."""

    @property
    def description(self) -> EntryDescription: ...

    @property
    def on_gpu(self) -> bool:
        """Whether it accepts arrays on a GPU without copying."""

    def run(self, tensors: Sequence[Tensor], *, like_torch: bool) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True, repr=False)
class ModelEntry:
    """One entry of a model, called as the original was. Calls are checked first."""

    runnable: Runnable
    call: CallDescription

    @property
    def name(self) -> str:
        return self.runnable.description.name

    @property
    def description(self) -> EntryDescription:
        return self.runnable.description

    def __repr__(self) -> str:
        """The entry's signature: ``forward(x: f32[batch, 4]) -> output: f32[batch, 2]``, then its sizes."""
        described = self.description
        inputs, outputs = (", ".join(map(str, each)) for each in (described.inputs, described.outputs))
        sizes = [f"{size_identifier(size.name)} in {size.range_text}" for size in self.call.symbols]
        return f"{self.name}({inputs}) -> {outputs or None}" + (f", {', '.join(sizes)}" if sizes else "")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        call = self.call
        leaves, sizes = checked_leaves(call, args, kwargs, on_gpu=self.runnable.on_gpu)
        given = [leaves[number] for number in call.tensor_leaves]
        tensors = [
            as_tensor(value, name=path) if isinstance(value, int) else as_in_memory(value) for path, value in given
        ]
        outputs = self.runnable.run(tensors, like_torch=any(map(is_torch_tensor, tensors)))
        write_back(call, leaves, outputs)
        return result_of(call, outputs, sizes)


class Model:
    """A loaded model. Call it, or one of its entries by name: ``model["eval"](x)``. Entries share one state.

    A model is thread-safe: any number of threads may call it at the same time.
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
        """The entries, one per line; the number of state tensors; the native code that runs."""
        entries = "".join(f"\n  {entry!r}" for entry in self._entries.values())
        code = "interpreted by torch" if self._target is None else f"target {self._target}"
        return f"<precast.runtime.Model: {code}, {len(self._state)} tensors of state{entries}>"

    @property
    def entries(self) -> tuple[str, ...]:
        """The names of the entries, in packaging order."""
        return tuple(self._entries)

    @property
    def state(self) -> State:
        """Weights and buffers by name. Calls read them, and entries that update buffers write them."""
        return self._state

    @property
    def target(self) -> str | None:
        """The target whose native code runs; ``None`` if the model was not loaded from a package or is interpreted."""
        return self._target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the entry ``forward``, or the first if there is none."""
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
        """Check every hash in the file, run its samples with the packaged state, and compare the results.

        Returns the comparisons; raises an ``ArtifactError`` that says what differs.
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
    """Open a model library that was built on this machine."""
    entries = library_entries(path, needs=needs, weights=weights, fallback=fallback)
    return Model(entries, State(NativeState(entries[0].model)))
