"""Tables on standard output: fitted to a terminal, at full width elsewhere."""

from rich.console import Console
from rich.table import Table

_WIDE = 10_000


def print_table(table: Table) -> None:
    """Print it; in files and pipes no row is wrapped, so that paths can be copied and lines searched."""
    console = Console()
    if console.is_terminal:
        console.print(table)
    else:
        Console(width=_WIDE).print(table, soft_wrap=True)
