"""What the command is doing, for people who wait."""

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
