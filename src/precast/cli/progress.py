"""What the command is doing, for people who wait.

Numbers of bytes and seconds for people.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console

Tell = Callable[[str], None]


@contextmanager
def telling_steps() -> Iterator[Tell]:
    """Gives what to call with the name of each step.

    On a terminal each is a line on standard error; whoever does the step may show a bar of its own below it.
    """
    console = Console(stderr=True)

    def tell(step: str) -> None:
        if console.is_terminal:
            console.print(f"{step}…", style="dim", highlight=False, markup=False)

    yield tell


def bytes_text(count: int) -> str:
    """Bytes in powers of 1024.

    >>> bytes_text(3 << 19)
    '1.5 MiB'
    """
    size, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1024:
            break
        size, unit = size / 1024, larger
    return f"{size:.1f} {unit}" if unit != "B" else f"{count} B"


def seconds_text(seconds: float) -> str:
    """A time in the unit that people would choose.

    >>> [seconds_text(each) for each in (2.5, 0.0123, 0.0000071)]
    ['2.50 s', '12.3 ms', '7.1 µs']
    """
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"
