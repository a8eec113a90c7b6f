"""What Precast makes of one model in one way of using it, compared with eager: a verdict and its reason.

A way of using a model is a *mode*: ``forward`` and ``training`` (compiled, one call or one step), ``export`` (saved,
loaded, run), ``package`` (native code in a file, run by ``precast.runtime``). Where Python code decides on data, a
program is exported as the error's advice says: with ``branch_on_data``, else with tables of sizes as constants.
"""

import copy
import functools
import itertools
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

import precast
import precast.export
import precast.runtime
from precast.errors import DataDependentError, PrecastError
from tests.models.examples import Example, NotJudgedError

SLOW_SECONDS = 60
"""Of processor time, that of the C++ compiler included: what making a tiny model of few layers may take."""


@dataclass(frozen=True)
class Verdict:
    """``equal`` to eager, ``in pieces`` (equal, with parts that run in Python), ``with constants`` (equal, for one
    value of some arguments), ``refused`` with a PrecastError, ``wrong``, ``failed`` with any other error, ``crashed``,
    ``slow`` (equal, but it took too long), or ``not judged``, since eager does not run it either.
    """  # fmt: skip

    status: str
    reason: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)


class WrongError(AssertionError):
    """Numbers, shapes or types that differ from eager's."""


def judge(make: Callable[[], Example], mode: str) -> Verdict:
    """Build the model and judge it; never raises but for what ends the process."""
    try:
        torch.manual_seed(0)
        example = make().train(mode == "training")
        options = {"random": "eager"} if _is_random(example) else {}
    except NotJudgedError as problem:
        return Verdict("not judged", _one_line(problem))
    started, spent, seconds = time.monotonic(), _processor_seconds(), 0.0
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", precast.GraphBreakWarning)
            compare = MODES[mode](example, options)
        seconds = _processor_seconds() - spent
        compare.run()
    except WrongError as problem:
        status, reason = "wrong", _one_line(problem)
    except PrecastError as problem:
        status, reason = "refused", _one_line(problem)
    except NotJudgedError as problem:
        status, reason = "not judged", _one_line(problem)
    except Exception as problem:  # noqa: BLE001 - whatever comes out is the verdict
        status, reason = "failed", f"{type(problem).__name__}: {_one_line(problem)} ({_where(problem)})"
    else:
        breaks = [str(each.message) for each in told if issubclass(each.category, precast.GraphBreakWarning)]
        status, reason = ("in pieces", _first_break(breaks[0])) if breaks else ("equal", "")
        if compare.constants:
            status, reason = "with constants", ", ".join(compare.constants)
    if status in ("equal", "in pieces", "with constants") and seconds > SLOW_SECONDS:
        status, reason = "slow", f"{seconds:.0f} s of processor time"
    return Verdict(status, reason, round(seconds, 1), {"wall": round(time.monotonic() - started, 1)})


@dataclass(frozen=True)
class Comparison:
    """What is done once the model has run, and does not count as its time: it fails if results are not as eager's.

    ``constants`` are the arguments that the program takes as constants.
    """

    run: Callable[[], None]
    constants: tuple[str, ...] = ()


def _forward(example: Example, options: dict[str, Any]) -> Comparison:
    eager = copy.deepcopy(example.module)
    compiled = precast.compile(example.module, options=options)
    results = []
    for run in (eager, compiled):
        torch.manual_seed(1)
        with torch.no_grad():
            results.append(run(**copy.deepcopy(example.kwargs)))

    def compare() -> None:
        _assert_as_eager(example, results[1], results[0], "outputs")
        _assert_close(dict(example.module.named_buffers()), dict(eager.named_buffers()), "buffers")

    return Comparison(compare)


def _training(example: Example, options: dict[str, Any]) -> Comparison:
    eager = copy.deepcopy(example.module)
    precise = _in_float64(example)
    try:
        expected = _step(eager, eager, example.kwargs)
    except Exception as problem:
        raise NotJudgedError(f"eager does not train it: {type(problem).__name__}: {problem}") from problem
    compiled = precast.compile(example.module, options=options)
    found = _step(compiled, example.module, example.kwargs)
    return Comparison(functools.partial(_compare_steps, found, expected, precise))


def _compare_steps(found: dict[str, Any], expected: dict[str, Any], precise: Example | None) -> None:
    try:
        for name, values in found.items():
            _assert_close(values, expected[name], name)
    except WrongError:
        if precise is None:
            raise
        exact = [_step(each.module, each.module, each.kwargs) for each in (precise, *_rounded(precise))]
        if not all(_is_as_precise(found[name], expected[name], *(each[name] for each in exact)) for name in found):
            raise


def _step(run: Any, module: torch.nn.Module, kwargs: dict[str, Any]) -> dict[str, Any]:
    torch.manual_seed(1)
    results = [value for value in _tensors(run(**copy.deepcopy(kwargs))) if value.requires_grad]
    if not results:
        raise NotJudgedError("no output has a gradient")
    loss = sum(value.abs().square().mean() for value in results)
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    outputs = [value.detach() for value in (*results, loss)]
    return {"outputs": outputs, "gradients": gradients, "buffers": dict(module.named_buffers())}


_TABLES_OF_SIZES = ("grid_thw", "image_grid_thw")


def _exported(example: Example) -> tuple[precast.export.ExportedProgram, tuple[str, ...]]:
    """The program, and the arguments that are constants of it, if it could not be exported otherwise."""
    try:
        return precast.export.export(example.module, (), example.kwargs, branch_on_data=True), ()
    except DataDependentError:
        constants = tuple(name for name in _TABLES_OF_SIZES if name in example.kwargs)
        if not constants:
            raise
        return precast.export.export(example.module, (), example.kwargs, constant_arguments=constants), constants


def _export(example: Example, options: dict[str, Any]) -> Comparison:
    with torch.no_grad():
        torch.manual_seed(1)
        expected = copy.deepcopy(example.module)(**copy.deepcopy(example.kwargs))
        program, constants = _exported(example)
        with tempfile.TemporaryDirectory() as folder:
            precast.export.save(program, Path(folder) / "model.pt2")
            loaded = precast.export.load(Path(folder) / "model.pt2")
        torch.manual_seed(1)
        found = loaded.module()(**copy.deepcopy(example.kwargs))
    return Comparison(functools.partial(_assert_as_eager, example, found, expected, "outputs"), constants)


def _package(example: Example, options: dict[str, Any]) -> Comparison:
    with torch.no_grad(), tempfile.TemporaryDirectory() as folder:
        torch.manual_seed(1)
        expected = copy.deepcopy(example.module)(**copy.deepcopy(example.kwargs))
        program, constants = _exported(example)
        path = precast.package(program, path=Path(folder) / "model.precast")
        loaded = precast.runtime.load(path)
        if options:
            loaded(**example.kwargs)
            raise NotJudgedError("it draws random numbers, and a package has its own")
        found = loaded(**copy.deepcopy(example.kwargs))
    return Comparison(functools.partial(_assert_as_eager, example, found, expected, "outputs"), constants)


MODES: dict[str, Callable[[Example, dict[str, Any]], Comparison]] = {
    "forward": _forward,
    "training": _training,
    "export": _export,
    "package": _package,
}


def _tensors(results: Any) -> list[torch.Tensor]:
    results = results.to_tuple() if hasattr(results, "to_tuple") else results
    leaves = [torch.as_tensor(leaf) if hasattr(leaf, "__dlpack__") else leaf for leaf in pytree.tree_leaves(results)]
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _is_random(example: Example) -> bool:
    """Whether two seeds give two results, in the mode that the model is in."""
    results = []
    module = copy.deepcopy(example.module)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            try:
                results.append(_tensors(module(**copy.deepcopy(example.kwargs))))
            except Exception as problem:
                raise NotJudgedError(f"eager does not run it: {type(problem).__name__}: {problem}") from problem
    return any(not torch.equal(one.nan_to_num(), other.nan_to_num()) for one, other in zip(*results, strict=True))


def _in_float64(example: Example) -> Example | None:
    """The same model and call in double precision; None where the model does not run so."""
    module = copy.deepcopy(example.module).double()
    kwargs = pytree.tree_map_only(
        torch.Tensor, lambda value: value.double() if value.is_floating_point() else value, example.kwargs
    )
    try:
        with torch.no_grad():
            copy.deepcopy(module)(**copy.deepcopy(kwargs))
    except Exception:  # noqa: BLE001 - many models name float32 somewhere
        return None
    return Example(module, kwargs)


def _assert_as_eager(example: Example, found: Any, expected: Any, what: str) -> None:
    found, expected = _tensors(found), _tensors(expected)
    try:
        _assert_close(found, expected, what)
    except WrongError:
        precise = _in_float64(example)
        if precise is None or not _is_as_precise(found, expected, *map(_call, (precise, *_rounded(precise)))):
            raise


def _call(example: Example) -> list[torch.Tensor]:
    torch.manual_seed(1)
    with torch.no_grad():
        return _tensors(example.module(**copy.deepcopy(example.kwargs)))


def _rounded(precise: Example) -> Iterator[Example]:
    """The model with parameters moved by about what rounding moves a few layers' results, in several ways.

    Where that alone changes a gradient visibly (an activation so near zero that it falls on either side of a ReLU, a
    batch norm over two nearly equal values), no arithmetic in single precision can be asked to be nearer.
    """
    for seed, bits in itertools.product(range(4), (22, 19)):
        generator = torch.Generator().manual_seed(seed)
        moved = copy.deepcopy(precise)
        with torch.no_grad():
            for parameter in moved.module.parameters():
                if parameter.is_floating_point():
                    noise = torch.rand(parameter.shape, generator=generator, dtype=torch.float64) * 2 - 1
                    parameter.mul_(1 + noise * 2.0**-bits)
        yield moved


def _assert_close(found: Any, expected: Any, what: str) -> None:
    """Fail where a number differs by more than a thousandth, with room for what is small beside its neighbours."""
    if pytree.tree_structure(found) != pytree.tree_structure(expected):
        raise WrongError(f"{what}: not as many or not of the same names: {_difference(found, expected)}")
    for (path, one), other in zip(pytree.tree_leaves_with_path(found), pytree.tree_leaves(expected), strict=True):
        if (one is None) != (other is None):
            raise WrongError(f"{what}{pytree.keystr(path)}: {'none' if one is None else 'one'}, unlike in eager")
        if one is None:
            continue
        if one.shape != other.shape or one.dtype != other.dtype:
            raise WrongError(
                f"{what}{pytree.keystr(path)}: {tuple(one.shape)} {one.dtype} for {tuple(other.shape)} {other.dtype}"
            )
        room = _room(other)
        if not torch.allclose(one, other, rtol=1e-3, atol=room, equal_nan=True):
            apart = (one.double() - other.double()).abs().max().item() if not one.is_complex() else float("nan")
            raise WrongError(f"{what}{pytree.keystr(path)}: {apart:.3g} off, of at most {other.abs().max().item():.3g}")


def _room(expected: torch.Tensor) -> float:
    if not expected.numel() or not (expected.is_floating_point() or expected.is_complex()):
        return 0.0
    return 1e-5 * _largest(expected.abs()) + 1e-7


def _is_as_precise(found: Any, expected: Any, exact: Any, *rounded: Any) -> bool:
    """Whether ours is no further from double precision than eager, or a rounding of the parameters, is.

    What cancels (the gradient of a bias before a batch norm) is as imprecise as the numbers beside it are large.
    """
    leaves = [pytree.tree_leaves(each) for each in (found, expected, exact, *rounded)]
    floor = 1e-6 * max([0.0, *(_largest(true) for true in leaves[2])])
    for one, other, true, *moved in zip(*leaves, strict=True):
        if one is None or not one.is_floating_point():
            if one is not None and not torch.equal(one, other):
                return False
            continue
        finite = one.isfinite()
        if one.shape != true.shape or not torch.equal(finite, other.isfinite()):
            return False
        ours, *theirs = (_largest((value.double() - true)[finite]) for value in (one, other, *moved))
        if ours > 8 * max(theirs) + floor + 1e-7:
            return False
    return True


def _largest(values: torch.Tensor | None) -> float:
    return 0.0 if values is None or not values.numel() else values.double().abs().nan_to_num(posinf=0.0).max().item()


def _difference(found: Any, expected: Any) -> str:
    if isinstance(found, dict):
        return ", ".join(sorted(set(found) ^ set(expected))[:4])
    return f"{len(found)} for {len(expected)}"


def _processor_seconds() -> float:
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _first_break(message: str) -> str:
    """Of a warning about graph breaks, the first module and line that it names."""
    return " ".join(" ".join(message.splitlines()[1:3]).split())


def _one_line(problem: BaseException) -> str:
    return " ".join(str(problem).split())[:600]


def _where(problem: BaseException) -> str:
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "" if trace is None else f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
