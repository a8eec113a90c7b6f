"""A checker for the minifier that runs each try in a child process, so that crashes and hangs can be minified.

A callable runs in a fork of this process: it may be a closure, and sees what was imported. Source text runs in a fresh
interpreter, which is slower, but needed if a fork cannot work (a CUDA device is in use).
"""

import faulthandler
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from torch import fx

from precast.debug.checking_interpreter import record_node_values
from precast.debug.saved_graph import load_graph, load_inputs, placeholder_names, save_example_inputs, save_graph
from precast.debug.tensor_file import number_as_tensor, read_tensors, write_tensors
from precast.errors import InputTypeError, InputValueError

Checker = Callable[[fx.GraphModule, list[object]], bool]

# A child's exit status; others mean that it raised (1) or was killed by a signal (negative).
_TRUE, _FALSE = 40, 41


def in_child_process(
    checker: Checker | str, timeout: float = 60.0, *, crashes: bool = False, hangs: bool = False
) -> "ChildProcessChecker":
    """Wrap a checker for ``minifier`` so that each try runs in a child process, for at most ``timeout`` seconds.

    ``checker`` is a callable, or Python source that defines ``check(graph_module, inputs)``. With ``crashes=True`` a
    child killed by a signal counts as the failure that is looked for, and with ``hangs=True`` one that times out does;
    otherwise they do not.
    """
    if not (callable(checker) or isinstance(checker, str)):
        raise InputTypeError(
            f"a checker must be callable or Python source, not {type(checker).__name__}",
            why="it is called with each smaller graph, and returns whether that still fails",
            fix="pass a function of (graph_module, inputs) that returns a bool",
        )
    return ChildProcessChecker(checker, timeout, crashes, hangs)


@dataclass(frozen=True)
class ChildProcessChecker:
    """A checker whose tries cannot harm this process; see in_child_process."""

    checker: Checker | str
    timeout: float
    crashes: bool
    hangs: bool

    def __call__(self, graph_module: fx.GraphModule, inputs: list[object]) -> bool:
        """Whether the failure is reproduced."""
        with tempfile.TemporaryDirectory(prefix="precast_try_") as directory:
            folder = Path(directory)
            if isinstance(self.checker, str):
                status = self._run_fresh("check", graph_module, inputs, folder)
            else:
                status = self._run_fork(_exit_with_answer(self.checker, graph_module, inputs), folder)
            if status in (_TRUE, _FALSE):
                return status == _TRUE
            if status is None or status < 0:
                return self.hangs if status is None else self.crashes
            raise _checker_raised(folder / "output.txt")

    def node_values(self, graph_module: fx.GraphModule, inputs: list[object]) -> dict[str, object]:
        """Return the values that nodes compute, by name, until the child fails."""
        with tempfile.TemporaryDirectory(prefix="precast_values_") as directory:
            folder = Path(directory)
            if isinstance(self.checker, str):
                self._run_fresh("values", graph_module, inputs, folder)
            else:
                self._run_fork(lambda: _write_values(graph_module, inputs, folder), folder)
            names = [node.name for node in graph_module.graph.nodes]
            return {names[int(path.stem)]: _read_value(path) for path in folder.glob("*.value")}

    def _run_fork(self, work: Callable[[], None], folder: Path) -> int | None:
        _check_fork_works()
        process = multiprocessing.get_context("fork").Process(target=_work_in_fork, args=(work, folder / "output.txt"))
        with warnings.catch_warnings():
            # Python ≥ 3.12 warns about threads; the child runs torch with one thread and takes none of our locks.
            warnings.filterwarnings("ignore", category=DeprecationWarning)
            process.start()
        process.join(self.timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            return None
        return process.exitcode

    def _run_fresh(self, task: str, graph_module: fx.GraphModule, inputs: list[object], folder: Path) -> int | None:
        assert isinstance(self.checker, str)
        save_graph(graph_module, folder, inputs)
        save_example_inputs(folder, placeholder_names(graph_module), inputs)
        (folder / "checker.py").write_text(self.checker, encoding="utf-8")
        command = [sys.executable, "-c", f"from {__name__} import main; main()", task, str(folder)]
        with open(folder / "output.txt", "wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
            try:
                return process.wait(self.timeout)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # includes processes that the checker started
                process.wait()


def main() -> None:
    """Run a task in a fresh interpreter; the arguments are the task, and the folder of graph, inputs and checker."""
    task, folder = sys.argv[1], Path(sys.argv[2])
    _no_core_dump()
    sys.path.insert(0, str(folder))
    checker: Checker = import_module("checker").check  # first, since it may define ops that the graph calls
    graph_module, inputs = load_graph(folder), load_inputs(folder)
    if task == "values":
        _write_values(graph_module, inputs, folder)
    else:
        _exit_with_answer(checker, graph_module, inputs)()


def _exit_with_answer(checker: Checker, graph_module: fx.GraphModule, inputs: list[object]) -> Callable[[], None]:
    return lambda: sys.exit(_TRUE if checker(graph_module, inputs) else _FALSE)


def _work_in_fork(work: Callable[[], None], output: Path) -> None:
    _no_core_dump()
    faulthandler.disable()  # expected crashes should not be reported on the terminal
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    # OpenMP's threads do not survive a fork: a parallel region in the child would deadlock.
    torch.set_num_threads(1)
    work()


def _no_core_dump() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write_values(graph_module: fx.GraphModule, inputs: list[object], folder: Path) -> None:
    positions = {node: position for position, node in enumerate(graph_module.graph.nodes)}

    def write(node: fx.Node, value: object) -> None:
        path = folder / f"{positions[node]}.value"
        if isinstance(value, torch.Tensor):
            write_tensors(path.with_suffix(".part"), {"tensor": value})
        elif isinstance(value, int | float):
            write_tensors(path.with_suffix(".part"), {"number": number_as_tensor(value)})
        else:
            return
        path.with_suffix(".part").rename(path)  # so that a child killed while writing leaves no partial value

    record_node_values(graph_module, inputs, write)


def _read_value(path: Path) -> object:
    ((kind, value),) = read_tensors(path).items()
    return value if kind == "tensor" else value.item()


def _check_fork_works() -> None:
    if torch.cuda.is_initialized():
        raise InputValueError(
            "a callable checker cannot run in a child process here",
            why="this process uses a CUDA device, which a fork of it cannot",
            fix="pass the checker as source: in_child_process('def check(graph_module, inputs): ...')",
        )


def _checker_raised(output: Path) -> InputValueError:
    lines = output.read_text(errors="replace").strip().splitlines()[-8:]
    return InputValueError(
        "the checker raised in its child process",
        why="\n       ".join(lines),
        fix="catch in the checker what the graph may raise, and return True if that is the failure to reproduce",
    )
