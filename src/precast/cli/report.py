"""``precast report``: an HTML report about a compiled model, or about a package."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from precast.artifact.archive import check_folder
from precast.cli.examples import examples
from precast.cli.progress import bytes_text, telling_steps
from precast.report.contents import Report
from precast.report.page import read_page, write_page

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast report model.py:make -o report.html",
    "precast report model.py:make -o new.html --compare old.html",
    "precast report model.precast -o report.html",
)


@app.command(epilog=EXAMPLES)
def report(
    source: Annotated[str, typer.Argument(help="file.py:factory, package.module:factory, or a .precast file.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The page to write.")] = Path("report.html"),
    inference: Annotated[bool, typer.Option("--inference", help="Do not compute gradients.")] = False,
    calls: Annotated[int, typer.Option(min=0, help="Number of calls to time; 0 builds and runs nothing.")] = 10,
    compare: Annotated[
        str | None, typer.Option(help="An earlier report, or another model or package, to compare with.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the content of the page as JSON.")] = False,
) -> None:
    """Write an interactive report about a compiled model.

    One self-contained HTML file with the graph, kernels and their code, times, memory, guards and passes.
    The factory returns (module, args), (module, args, kwargs) or (module, args, kwargs, dynamic_shapes).
    """
    if not as_json:
        check_folder(output)
    is_page = compare is not None and compare.endswith((".html", ".htm"))
    previous = read_page(compare) if compare is not None and is_page else None
    with telling_steps() as tell:

        def gathered(one: str) -> Report:
            tell(f"looking at {one}")
            return _contents(one, inference=inference, calls=calls)

        found = gathered(source)
        if as_json:
            typer.echo(json.dumps(asdict(found)))
            return
        if compare is not None and not is_page:
            previous = asdict(gathered(compare))
        written = write_page(found, output, previous=previous)
    typer.echo(f"{written}: {bytes_text(written.stat().st_size)}")


def _contents(source: str, *, inference: bool, calls: int) -> Report:
    if ":" not in source:
        from precast.report.package_contents import package_report

        return package_report(Path(source))
    # Packages can be reported without torch, too.
    import torch

    from precast.cli.model_reference import load_model
    from precast.report.collect import collect

    model = load_model(source)
    with torch.set_grad_enabled(not inference):
        return collect(model.module, model.args, model.kwargs, calls=calls)
