"""Reports on an export: its steps as they begin, their durations, and a page about the result.

Also handles the keywords that only torch's exporter has: supported, ignored, or refused if they cannot be honored.
"""

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from precast.errors import OptionError
from precast.export import save
from precast.onnx.program import ONNXProgram


@dataclass(frozen=True)
class TorchOptions:
    """Keywords of ``torch.onnx.export`` that have a meaning here, with torch's defaults."""

    verbose: bool | None = None
    report: bool = False
    profile: bool = False
    dump_exported_program: bool = False
    artifacts_dir: Any = "."
    export_params: bool = True
    dynamo: bool = True


# Keywords without effect here, and the values for which they have no effect in torch either.
_WITHOUT_MEANING: dict[str, tuple[Any, ...]] = {
    "fallback": (False, True),
    "do_constant_folding": (True, False),
    "autograd_inlining": (True, False),
    "custom_opsets": (None,),
    "export_modules_as_functions": (False, None),
    "operator_export_type": (None,),
    "training": (None,),
}


def torch_options(given: Mapping[str, Any]) -> TorchOptions:
    """Read the keywords; one that torch does not have is an error, as in any call."""
    known = {each.name for each in fields(TorchOptions)}
    for name, value in given.items():
        if name not in known and name not in _WITHOUT_MEANING:
            raise TypeError(f"export() got an unexpected keyword argument {name!r}")
        if name in _WITHOUT_MEANING and not any(value is usual for usual in _WITHOUT_MEANING[name]):
            warnings.warn(f"{name}={value!r} has no meaning for precast.onnx.export.", UserWarning, stacklevel=3)
    options = TorchOptions(**{name: value for name, value in given.items() if name in known})
    if not options.dynamo:
        raise OptionError(
            "dynamo is False.",
            why="that asks for torch's exporter by TorchScript, which is not used: programs are captured whole",
            fix="Leave dynamo out, or call torch.onnx.export for a model by TorchScript.",
        )
    return options


@dataclass
class ExportLog:
    """Records every step of one export, and its duration."""

    progress: Callable[[str], None] | None
    options: TorchOptions
    seconds: dict[str, float] = field(default_factory=dict)
    _current: str | None = None
    _begun: float = 0.0

    def __enter__(self) -> "ExportLog":
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def step(self, name: str) -> None:
        """End the current step, and begin this one."""
        self._end()
        self._current, self._begun = name, time.perf_counter()
        if self.progress is not None:
            self.progress(name)
        if self.options.verbose:
            print(f"[precast.onnx] {name}")

    def _end(self) -> None:
        if self._current is not None:
            self.seconds[self._current] = time.perf_counter() - self._begun
        self._current = None

    def write(self, program: ONNXProgram) -> None:
        """Write the artifacts that the user requested to their folder."""
        options = self.options
        if options.profile:
            print("\n".join(f"[precast.onnx] {name}: {seconds:.3f} s" for name, seconds in self.seconds.items()))
        if not options.report and not options.dump_exported_program:
            return
        folder = Path(options.artifacts_dir)
        folder.mkdir(parents=True, exist_ok=True)
        stem = f"onnx_export_{time.strftime('%Y-%m-%d_%H-%M-%S')}-{time.time_ns() % 10**9:09d}"
        if options.report:
            (folder / f"{stem}_success.md").write_text(self._page(program), encoding="utf-8")
        if options.dump_exported_program:
            assert program.exported_program is not None, "it was exported"
            save(program.exported_program, folder / f"{stem}.pt2")

    def _page(self, program: ONNXProgram) -> str:
        steps = [f"| {name} | {seconds:.3f} |" for name, seconds in self.seconds.items()]
        rules = [f"| {operator} | {rule} | {count} |" for operator, rule, count in program.rule_summary()]
        return "\n".join(
            [
                "# ONNX export", "", "```text", repr(program), "```", "",
                "| step | seconds |", "| --- | --- |", *steps, "",
                "| operator | rule | times |", "| --- | --- | --- |", *rules, "",
                "```text", str(program.exported_program), "```", "",
            ]
        )  # fmt: skip
