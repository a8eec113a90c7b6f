"""``precast cache``: shows the cache on disk, and empties it."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from precast.cache import Store, open_store
from precast.cache.entries import StoreInfo
from precast.cli.examples import examples
from precast.cli.progress import bytes_text, telling_steps
from precast.cli.shared_options import AsJson
from precast.cli.tables import print_table
from precast.errors import CacheError
from precast.options import Options

app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode="markdown")


@app.callback()
def cache() -> None:
    """Show or empty the cache of compiled programs."""


@app.command(epilog=examples("precast cache info", "precast cache info --json"))
def info(as_json: AsJson = False) -> None:
    """Show what is in the cache."""
    with _usable_store() as store:
        found = store.info()
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
        return
    console = Console()
    # A path is copied as one word: never wrapped, never parsed as markup.
    console.print(Text(f"{found.directory}"), soft_wrap=True)
    share = f", {found.bytes / found.limit:.0%} full" if found.limit else ""
    console.print(Text(f"{_entries(found.entries)}, {bytes_text(found.bytes)} of {bytes_text(found.limit)}{share}"))
    if found.kinds:
        print_table(_as_table(found))


@app.command(epilog=examples("precast cache clear", "precast cache clear --yes --json"))
def clear(
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was removed as JSON.")] = False,
) -> None:
    """Empty the cache; what is needed again is compiled again."""
    with _usable_store() as store:
        found = store.info()
        amount = f"{_entries(found.entries)}, {bytes_text(found.bytes)}"
        if found.entries and not yes:
            typer.confirm(f"Remove {amount} from {found.directory}?", abort=True, err=True)
        if found.entries:
            with telling_steps() as tell:
                tell("removing")
                found = store.clear()
    if as_json:
        typer.echo(json.dumps(_as_json(found), indent=2))
    else:
        typer.echo(f"Removed {amount}." if found.entries else "The cache is empty.")


@contextmanager
def _usable_store() -> Iterator[Store]:
    """The store that the environment names; errors of the system are reported as ours."""
    store = open_store(Options.from_environment())
    try:
        yield store
    except OSError as error:
        raise CacheError(
            f"the cache in {store.directory} cannot be read or changed",
            why=str(error),
            fix="make the folder readable and writable, or name another in PRECAST_CACHE_DIR",
        ) from error


def _entries(count: int) -> str:
    return "1 entry" if count == 1 else f"{count} entries"


def _as_table(found: StoreInfo) -> Table:
    table = Table("kind", box=None, pad_edge=False)
    table.add_column("entries", justify="right")
    table.add_column("size", justify="right")
    table.add_column("last used")
    for kind in found.kinds:
        last_used = datetime.fromtimestamp(kind.last_used).strftime("%Y-%m-%d %H:%M")
        table.add_row(kind.kind, str(kind.entries), bytes_text(kind.bytes), last_used)
    return table


def _as_json(found: StoreInfo) -> dict[str, object]:
    return {
        "directory": str(found.directory),
        "limit": found.limit,
        "entries": found.entries,
        "bytes": found.bytes,
        "kinds": [asdict(kind) for kind in found.kinds],
    }
