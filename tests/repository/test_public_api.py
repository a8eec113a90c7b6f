"""What users can call is written down, so that no change of it goes unseen."""

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import precast
from tests.golden_files import assert_file_holds
from tests.repository.sources import PACKAGE


def describe(name: str, value: object) -> Iterator[str]:
    """One line for a public name; for a class, also one for each of its own public members."""
    if not callable(value):
        yield f"{name}: {type(value).__name__}"
        return
    # Where a default value lies in memory is another place in every run.
    # Python tells no signature of a warning.
    signature = "" if isinstance(value, type) and issubclass(value, Warning) else inspect.signature(value)
    yield re.sub(r" at 0x[0-9a-f]+", "", f"{name}{signature}")
    if inspect.isclass(value):
        for member, definition in sorted(_own_members(value).items()):
            yield from describe(f"{name}.{member}", definition)


def _own_members(kind: type) -> dict[str, object]:
    """The public members that the class or a class of ours above it defines."""
    ours = [base for base in reversed(kind.__mro__) if base.__module__.startswith("precast")]
    defined = {name for base in ours for name in vars(base) if not name.startswith("_")}
    return {name: getattr(kind, name) for name in defined}


def test_the_public_names_are_those_written_down():
    lines = (line for name in precast.__all__ for line in describe(name, getattr(precast, name)))
    assert_file_holds(Path(__file__).with_name("public_api.txt"), "\n".join(lines))


class Stove:
    degrees = 20

    def __init__(self, *, gas: bool = False):
        pass

    def heat(self, to: int) -> None:
        pass

    @property
    def is_hot(self) -> bool:
        return False


def test_a_class_is_described_with_its_members(monkeypatch):
    monkeypatch.setattr(Stove, "__module__", "precast.stove")
    assert list(describe("Stove", Stove)) == [
        "Stove(*, gas: bool = False)",
        "Stove.degrees: int",
        "Stove.heat(self, to: int) -> None",
        "Stove.is_hot: property",
    ]


def test_no_name_that_is_found_when_first_used_is_that_of_a_module_beside_it():
    # Once imported, the module would be found in its place: a module that nobody can call.
    for path in PACKAGE.rglob("__init__.py"):
        package = ".".join(path.parent.relative_to(PACKAGE.parent).parts)
        for name in getattr(import_module(package), "_HOMES", {}):
            assert not path.with_name(f"{name}.py").exists(), f"{package}.{name}"
