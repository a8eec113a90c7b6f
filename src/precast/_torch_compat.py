"""The few places where torch's private interfaces moved between the versions that we support (2.11 and up)."""

from functools import cached_property

from torch._guards import GuardSource, Source

_NAME_IS_ATTRIBUTE = not callable(getattr(Source, "name", None))


class _NamedSource(Source):
    """Where a symbolic size comes from, told to torch's ShapeEnv by a plain name."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __hash__(self) -> int:
        return hash(self.path)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _NamedSource) and other.path == self.path

    @cached_property
    def guard_source(self) -> GuardSource:
        return GuardSource.LOCAL

    @property
    def _name_template(self) -> str:
        return self.path


class _NamedSourceWithMethods(_NamedSource):
    """The same where ``Source.name`` and ``Source.guard_source`` are still methods."""

    def name(self) -> str:  # type: ignore[override]
        return self.path

    def guard_source(self) -> GuardSource:  # type: ignore[override]
        return GuardSource.LOCAL


def named_source(path: str) -> Source:
    """A source for ShapeEnv that is known by ``path`` in messages, such as ``args[0].shape[1]``."""
    return _NamedSource(path) if _NAME_IS_ATTRIBUTE else _NamedSourceWithMethods(path)
