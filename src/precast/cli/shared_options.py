"""Options that mean the same in several commands."""

from pathlib import Path
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NativeTarget = Annotated[
    str | None, typer.Option(help="Which native code to run; by default the best that this machine supports.")
]
PublicKey = Annotated[
    Path | None,
    typer.Option("--require-signature", help="PEM file of the public key that must have signed the file."),
]
Threads = Annotated[int | None, typer.Option(help="Number of threads; by default as many as OpenMP uses.")]
