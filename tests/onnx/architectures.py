"""Every architecture of ``transformers`` as an ONNX model, compared with eager in onnxruntime at two sizes.

``python -m tests.onnx.architectures`` goes on where it ended, and writes ``docs/onnx-architectures.md``.
"""

import argparse
import json
import multiprocessing
import warnings
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch.utils import _pytree as pytree

from precast.errors import PrecastError, SymbolicShapeError
from precast.onnx import ONNXProgram, export
from tests.models.architectures import architecture_names, make_architecture
from tests.models.examples import Example, NotJudgedError
from tests.models.judging import WrongError, _assert_as_eager

RESULTS = Path(".onnx_architectures.jsonl")
PAGE = Path("docs/onnx-architectures.md")
LIMIT_SECONDS = 300
STATUSES = ("two sizes", "one size", "refused", "failed", "wrong", "not judged")
INTRODUCTION = """# Architectures in ONNX

Every architecture of `transformers`, made small by its configuration, with random weights, as `precast.onnx.export`
writes it, compared with eager in onnxruntime: equal, or no further from double precision than eager is. *Two sizes*:
the sizes that may change are dynamic, and two calls are compared. *One size*: its program takes the example's sizes
alone. *Refused* is a `PrecastError` that says why, *failed* any other error. *Not judged*: eager does not run the
model as our configuration makes it. What is not listed has not been run yet.

This page is written by `python -m tests.onnx.architectures`.
"""


def judged(name: str) -> tuple[str, str]:
    """The verdict about one model, and its reason."""
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    try:
        example = make_architecture(name).train(False)
        try:
            program = export(example.module, (), kwargs=example.kwargs, dynamic_shapes=example.dynamic_shapes)
        except SymbolicShapeError as problem:
            _compare(export(example.module, (), kwargs=example.kwargs), example, example.kwargs)
            return "one size", str(problem)
        _compare(program, example, example.kwargs)
        _compare(program, example, example.other_kwargs)
    except NotJudgedError as problem:
        return "not judged", str(problem)
    except WrongError as problem:
        return "wrong", str(problem)
    except PrecastError as problem:
        return "refused", str(problem)
    except Exception as problem:  # noqa: BLE001 - whatever comes out is the verdict
        return "failed", f"{type(problem).__name__}: {problem}"
    return "two sizes", "; ".join(program.verification.skipped)


def _compare(program: ONNXProgram, example: Example, kwargs: dict[str, object]) -> None:
    with torch.no_grad():
        actual, expected = program.call_as_model(**kwargs), example.module(**kwargs)
    actual, expected = (pytree.tree_map_only(int, torch.tensor, each) for each in (actual, expected))
    assert pytree.tree_structure(actual) == pytree.tree_structure(expected)
    _assert_as_eager(Example(example.module, kwargs), actual, expected, "outputs")


def _send(connection: Connection, name: str) -> None:
    connection.send(judged(name))


def judged_in_child(name: str) -> tuple[str, str]:
    """The verdict from a new process, which may die."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.onnx.architectures"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(theirs, name))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(LIMIT_SECONDS) else ("failed", f"took more than {LIMIT_SECONDS} s")
    except EOFError:
        return "failed", "the process died"
    finally:
        process.kill()
        process.join()


def page(results: dict[str, tuple[str, str]]) -> str:
    counts = Counter(status for status, _ in results.values())
    totals = [f"| {' | '.join(STATUSES)} |", "| --- " * len(STATUSES) + "|"]
    totals.append("| " + " | ".join(str(counts[status]) for status in STATUSES) + " |")
    rows = [f"| {name.partition('/')[2]} | {status} |" for name, (status, _) in sorted(results.items())]
    reasons = [
        f"- `{name.partition('/')[2]}`: *{status}*: {reason.splitlines()[0][:300]}"
        for name, (status, reason) in sorted(results.items())
        if status not in ("two sizes", "not judged")
    ]
    parts = [INTRODUCTION, "## Totals\n", *totals, "\n## Not at two sizes\n", *(reasons or ["None."])]
    return "\n".join([*parts, "\n## Models\n", "| model | checked at |", "| --- | --- |", *rows, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="models of these names, parted by commas")
    only = parser.parse_args().only
    known = [json.loads(line) for line in RESULTS.read_text().splitlines()] if RESULTS.exists() else []
    results = {name: (status, reason) for name, status, reason in known}
    names = [name for name in architecture_names() if name.startswith("transformers/")]
    wanted = [f"transformers/{name}" for name in only.split(",")] if only else names
    for name in wanted:
        if name not in results:
            results[name] = judged_in_child(name)
            with RESULTS.open("a") as file:
                file.write(json.dumps([name, *results[name]]) + "\n")
            print(name, *results[name], flush=True)
    PAGE.write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
