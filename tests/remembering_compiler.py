"""A g++ for tests that compiles equal units once, whatever folder, cache or process asks for them.

Many tests begin with an empty cache, and each would compile the same library routines again, which was half of what
compiling took. `put_first` copies this file into a folder, as a command called g++, and puts it first on the PATH.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

NAME = "g++"
DAYS_KEPT = 14


def put_first(folder: str) -> None:
    """Have every g++ that is run from now on, by child processes too, remember its results in the folder."""
    commands = os.path.join(folder, "bin")
    path = os.environ.get("PATH", "").split(os.pathsep)
    real = _find(path)
    if commands in path or real is None:
        return
    os.makedirs(commands, exist_ok=True)
    with open(__file__) as source:
        lines = [
            f"#!{sys.executable} -IS",
            source.read(),
            f"# {_identity(real)}",
            f"sys.exit(main({real!r}, sys.argv[1:]))",
        ]
    text = "\n".join(lines)
    command = os.path.join(commands, NAME)
    # A file that is not touched keeps its time, by which caches know the compiler.
    if not (os.path.exists(command) and _read(command) == text.encode()):
        _put(command, text.encode(), mode=0o755)
    os.environ["PATH"] = os.pathsep.join([commands, *path])


def main(real: str, arguments: list[str]) -> int:
    """Compile what is not remembered; whatever is not a plain compilation goes to the real compiler as it came."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    units = [argument for argument in arguments if argument.endswith(".cpp")]
    if "-c" not in arguments or not units:
        os.execv(real, [real, *arguments])
    target = arguments[arguments.index("-o") + 1] if "-o" in arguments else None
    flags = [argument for argument in arguments if argument not in (*units, "-o", target)]
    made = {unit: target or os.path.splitext(os.path.basename(unit))[0] + ".o" for unit in units}
    kept = {unit: os.path.join(folder, _key(real, flags, unit)) for unit in units}
    missing = [unit for unit in units if not os.path.exists(kept[unit])]
    if missing:
        wanted = ["-o", target] if target else []
        status = subprocess.call([real, *flags, *missing, *wanted])
        if status != 0:
            return status
        for unit in missing:
            _put(kept[unit], _read(made[unit]), mode=0o644)
    for unit in set(units) - set(missing):
        os.utime(kept[unit])
        with open(made[unit], "wb") as output:
            output.write(_read(kept[unit]))
    return 0


def forget_old(folder: str, now: float) -> None:
    """Remove what no test has asked for in a while."""
    for entry in os.scandir(folder):
        # Another process may be forgetting the same.
        with suppress(FileNotFoundError):
            if entry.is_file() and now - entry.stat().st_mtime > DAYS_KEPT * 86_400:
                os.remove(entry.path)


def _key(real: str, flags: Sequence[str], unit: str) -> str:
    """Everything that decides what a unit becomes: the compiler, its flags, the unit and all headers it may include."""
    own = os.path.dirname(os.path.abspath(unit))
    folders = [flag[2:] for flag in flags if flag.startswith("-I")]
    said = [flag.replace(own, ".") for flag in flags]
    digest = hashlib.sha256(repr((real, _identity(real), said, os.path.basename(unit))).encode())
    for path in (unit, *(header for folder in dict.fromkeys([own, *folders]) for header in _headers(folder))):
        digest.update(f"{os.path.basename(path)} {os.path.getsize(path)}\n".encode())
        digest.update(_read(path))
    return digest.hexdigest()


def _headers(folder: str) -> Iterator[str]:
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name) if os.path.isdir(folder) else ():
        if entry.name.endswith((".h", ".hpp")):
            yield entry.path


def _find(path: Iterable[str]) -> str | None:
    commands = (os.path.join(folder, NAME) for folder in path)
    return next((command for command in commands if os.access(command, os.X_OK)), None)


def _identity(command: str) -> str:
    facts = os.stat(command)
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _put(path: str, data: bytes, *, mode: int) -> None:
    """Make a file that appears whole: other processes may be reading it."""
    scratch = f"{path}.{os.getpid()}"
    with open(scratch, "wb") as file:
        file.write(data)
    os.chmod(scratch, mode)
    os.replace(scratch, path)
