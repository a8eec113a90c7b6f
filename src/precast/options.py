"""What a user may choose, as one frozen value, and the environment variables that set it.

No other file of the package reads the environment.
"""

import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, get_args

from precast.errors import InputTypeError, OptionError

RandomSource = Literal["philox", "eager"]
Verification = Literal["off", "results", "passes"]
Precision = Literal["bf16"]


def _default_cache_directory() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME", ""))
    # The XDG specification says to ignore a relative path.
    return (base if base.is_absolute() else Path.home() / ".cache") / "precast"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of one compilation.

    Values are checked when the object is created; strings are parsed as in the environment variables.
    """

    verify: Verification = "results"
    """Which programs to check: what the last pass makes, what every pass makes (``passes``, or on), or none (off)."""
    cache_directory: Path = field(default_factory=_default_cache_directory)
    """Where compiled results are cached; always absolute."""
    cache_bytes: int = 4 * 2**30
    """How large that folder may grow before the least recently used results are evicted."""
    random: RandomSource = "philox"
    """Whose random numbers a compiled program draws: our counter-based generator's, or exactly those of eager torch."""
    compiler: str | None = None
    """The C++ compiler, with arguments if needed; None: ``g++``, ``c++`` or ``clang++``, the first installed one."""
    profile: bool = False
    """Time every kernel and library call; `precast.profile` reports the times."""
    freeze: bool | None = None
    """Treat parameters and buffers as constants from the first call on: faster inference, no gradients, no updates.

    None: packages do so with what none of their entries updates, compiled functions do not."""
    precision: Precision | None = None
    """Of packages: ``bf16`` computes products and convolutions in bfloat16, as ``torch.autocast`` does, over weights
    that are stored so. Compiled functions follow ``torch.autocast`` itself."""
    measure: bool = False
    """Autotune large matrix products: time each way once per shape and keep the fastest; else use a heuristic."""
    debug: bool = False
    """Keep and print internals that only developers of the compiler need."""

    def __post_init__(self) -> None:
        for name in _SETTINGS:
            object.__setattr__(self, name, _understand(name, getattr(self, name), at=f"option {name!r}"))

    @classmethod
    def from_environment(cls, **overrides: Any) -> "Options":
        """The options that the environment sets, overridden by the keyword arguments."""
        if unknown := sorted(overrides.keys() - _SETTINGS.keys()):
            raise OptionError(
                f"there is no option {unknown[0]!r}",
                why=f"the options are {', '.join(_SETTINGS)}",
                fix=_suggest(unknown[0], tuple(_SETTINGS), otherwise="use one of these"),
            )
        variables = {name: _first_set(setting.variables) for name, setting in _SETTINGS.items()}
        values: dict[str, Any] = {
            name: _understand(name, os.environ[variable], at=f"environment variable {variable}")
            for name, variable in variables.items()
            if variable is not None and name not in overrides
        }
        return cls(**values, **overrides)


_NOT_IN_KEYS = ("verify", "cache_directory", "cache_bytes")


def key_text(options: Options) -> str:
    """The options that affect the result, and not how it is checked or where it is cached, as text for keys."""
    return repr({name: value for name, value in vars(options).items() if name not in _NOT_IN_KEYS})


def as_options(value: Options | Mapping[str, object] | None) -> Options:
    """The options meant by an ``options=`` argument: the environment's, overridden by those of a mapping.

    >>> as_options({"cache_bytes": "500M"}).cache_bytes
    524288000
    """
    if isinstance(value, Options):
        return value
    if value is None or isinstance(value, Mapping):
        return Options.from_environment(**(value or {}))
    raise InputTypeError(
        f"options cannot be {value!r}",
        why="they are an Options object, or a mapping from option names to values",
        fix='write, for example, options={"random": "eager"}',
    )


@dataclass(frozen=True)
class _Setting:
    """How one option is set from outside: the first variable that is set counts; ``parse`` raises ValueError."""

    variables: tuple[str, ...]
    parse: Callable[[object], object]
    examples: tuple[str, ...]


def _parse_switch(value: object) -> bool:
    word = str(value).strip().lower()
    if word not in _ON + _OFF:
        raise ValueError(f"it is on ({', '.join(_ON)}) or off ({', '.join(_OFF)})")
    return word in _ON


def _parse_verification(value: object) -> object:
    word = str(value).strip().lower()
    if word in get_args(Verification):
        return word
    if word not in _ON + _OFF:
        raise ValueError("final loop programs are verified, those of every pass, or none")
    return "passes" if word in _ON else "off"


def _parse_choice(value: object) -> bool | None:
    return None if value is None else _parse_switch(value)


def _parse_random(value: object) -> object:
    if value not in get_args(RandomSource):
        raise ValueError(f"the sources of random numbers are {', '.join(get_args(RandomSource))}")
    return value


def _parse_precision(value: object) -> object:
    if value is not None and value not in get_args(Precision):
        raise ValueError(f"packages can be made in {', '.join(get_args(Precision))}, or as their models are: None")
    return value


def _parse_bytes(value: object) -> int:
    match = re.fullmatch(r"(\d+)\s*([KMGT]?)(?:I?B)?", str(value).strip().upper())
    if match is None:
        raise ValueError("it is a number of bytes, or such a number with K, M, G or T for powers of 1024")
    return int(match[1]) * _UNITS[match[2]]


def _parse_directory(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError("it is the path of a folder")
    return Path(value).expanduser().absolute()


def _parse_compiler(value: object) -> object:
    if value is not None and not (isinstance(value, str) and shlex.split(value)):
        raise ValueError("it is a command")
    return value


COMPILERS = ("g++", "c++", "clang++")
"""The C++ compilers to try, in this order, if no option names one."""

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")

_SETTINGS = {
    "verify": _Setting(("PRECAST_VERIFY",), _parse_verification, get_args(Verification)),
    "cache_directory": _Setting(("PRECAST_CACHE_DIR",), _parse_directory, ("~/.cache/precast",)),
    "cache_bytes": _Setting(("PRECAST_CACHE_BYTES",), _parse_bytes, ("500M", "4G")),
    "random": _Setting(("PRECAST_RANDOM",), _parse_random, get_args(RandomSource)),
    "compiler": _Setting(("PRECAST_CXX", "CXX"), _parse_compiler, ("g++", "clang++")),
    "profile": _Setting(("PRECAST_PROFILE",), _parse_switch, _ON + _OFF),
    "freeze": _Setting(("PRECAST_FREEZE",), _parse_choice, _ON + _OFF),
    "precision": _Setting((), _parse_precision, get_args(Precision)),
    "measure": _Setting(("PRECAST_MEASURE",), _parse_switch, _ON + _OFF),
    "debug": _Setting(("PRECAST_DEBUG",), _parse_switch, _ON + _OFF),
}


def _first_set(variables: tuple[str, ...]) -> str | None:
    """The first variable with a value; an empty one counts as not set, as in shells."""
    return next((variable for variable in variables if os.environ.get(variable)), None)


def _understand(name: str, value: object, *, at: str) -> object:
    setting = _SETTINGS[name]
    try:
        return setting.parse(value)
    except ValueError as error:
        fix = _suggest(str(value), setting.examples)
        raise OptionError(f"{name} cannot be {value!r}", why=str(error), fix=fix, at=at) from None


def _suggest(word: str, known: tuple[str, ...], *, otherwise: str | None = None) -> str:
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]!r}?" if close else otherwise or f"use {' or '.join(known)}"


def environment_variables() -> dict[str, str]:
    """A copy of the environment, for callers that must detect any change in it."""
    return dict(os.environ)
