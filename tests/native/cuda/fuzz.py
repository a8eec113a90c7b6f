"""Random programs as GPU code in Triton's interpreter: ``python -m tests.native.cuda.fuzz --seconds 600 [--seed 0]``.

Each is compared with eager, and watched: a kernel must keep to its buffers, and not depend on the order of threads.
With ``--cubins N``, N in a hundred kernels are also compiled for sm_80 and sm_90.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

os.environ.setdefault("TRITON_INTERPRET", "1")

import precast
from precast.cache import Store
from precast.errors import BuildError
from precast.native.backend import BACKEND, NativeCompiler
from precast.native.targets.cuda.build.cubins import start_cubins
from precast.native.targets.cuda.kernel_source import KernelSource
from precast.options import Options
from tests.fuzz.generate import random_program
from tests.fuzz.judge import Verdict
from tests.fuzz.trials import Case, Trial, is_changed
from tests.fuzz.undefined import is_defined
from tests.native.cuda.interpreted import InterpretedGpu

MODES = ("inference", "frozen", "training")
PATIENCE = 120
"""Seconds that one program may take."""


class TooSlow(BaseException):
    """Not an ``Exception``: the interpreter turns those into its own."""


def block_sizes(seed: int) -> dict[str, Any]:
    """For most programs, limits that their few numbers reach, as those of real programs reach the real ones."""
    choose = random.Random(f"blocks of {seed}")
    if choose.random() < 0.3:
        return {}
    return {
        "codegen.tiling.SHORT": (short := choose.choice((1, 2, 16))),
        "codegen.nests.SHORT": short,
        "codegen.tiling.LONGEST_ROW": choose.choice((2, 8, 16384)),
        "codegen.tiling.ROW_BLOCKS": choose.choice(((4, 8), (2, 16), (64, 64))),
        "codegen.tiling.MULTIPROCESSORS": choose.choice((1, 4, 132)),
        "codegen.tiling.WIDTH": (width := choose.choice((2, 8, 64))),
        "passes.split_reductions.WIDTH": width,
        "passes.split_reductions.PROGRAMS": choose.choice((8, 64, 2000)),
        "passes.split_reductions.SHORTEST": choose.choice((1, 3, 512)),
        "passes.one_nest.FEW": choose.choice((2, 8, 264)),
        "passes.one_nest.LONG": choose.choice((2, 8, 16384)),
        "passes.one_nest.SMALL": choose.choice((0, 16, 4096)),
        "passes.padding.SHORTEST": choose.choice((1, 8, 512)),
        "codegen.groups.BLOCK": choose.choice((8, 1024)),
    }


@contextmanager
def with_blocks(sizes: dict[str, Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in sizes.items():
            stack.enter_context(mock.patch(f"precast.native.targets.cuda.{name}", value))
        yield


def modes_for(seed: int) -> tuple[str, ...]:
    return tuple(random.Random(f"modes of {seed}").choices(MODES, (4, 1, 5)))


def try_program(seed: int, target: InterpretedGpu, folder: Path) -> Iterator[tuple[str, Verdict]]:
    """The verdicts of one program, by mode."""
    case = Case(seed, random_program(seed), modes_for(seed))
    if not is_defined(case.program, seed, case.given):
        return
    for mode in case.modes:
        if mode == "frozen" and is_changed(case.program, seed):
            continue
        options = Options(cache_directory=folder, verify="passes", freeze=mode == "frozen")
        compilers = NativeCompiler(options, target=target), NativeCompiler(options, True, target)
        backend = replace(BACKEND, fw_compiler=compilers[0], inference_compiler=compilers[1])
        compile_module = partial(precast.compile, fullgraph=True, backend=backend, options=options)
        with with_blocks(block_sizes(seed)):
            yield mode, Trial(case, mode, compile_module).run()


def failures(seeds: Sequence[int], target: InterpretedGpu, folder: Path) -> list[str]:
    """What fails of these programs, in words."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [
            f"seed {seed}, {mode}: {verdict.kind}: {verdict.detail}"
            for seed in seeds
            for mode, verdict in try_program(seed, target, folder)
            if verdict.is_failure
        ]


def not_compiling(sources: Sequence[KernelSource], store: Store) -> Iterator[str]:
    """Why kernels do not compile, on any architecture."""
    for architecture in (80, 90):
        for source, cubin in zip(sources, start_cubins(sources, architecture, store)(), strict=True):
            if isinstance(cubin, BuildError):
                yield f"sm_{architecture}: {cubin}\n{source.text}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--cubins", type=int, default=0)
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, failed = collections.Counter[str](), 0
    end, seed, kernels = time.monotonic() + chosen.seconds, chosen.seed, 0
    with tempfile.TemporaryDirectory(prefix="precast-fuzz-gpu-") as name:
        folder, choose = Path(name), random.Random(chosen.seed)
        store = Store(folder / "cubins", limit=2**28)
        while time.monotonic() < end:
            target = InterpretedGpu(folder)
            signal.alarm(PATIENCE)
            try:
                for mode, verdict in try_program(seed, target, folder):
                    counts[f"{mode}: {verdict.kind}"] += 1
                    if verdict.is_failure:
                        failed += 1
                        print(f"seed {seed}, {mode}: {verdict.kind}: {verdict.detail}", flush=True)
            except TooSlow:
                counts["too slow"] += 1
                print(f"seed {seed} takes long", flush=True)
            signal.alarm(0)
            kernels += len(target.sources)
            for why in not_compiling([each for each in target.sources if choose.random() * 100 < chosen.cubins], store):
                failed += 1
                print(f"seed {seed}, {why}", flush=True)
            seed += 1
    for what, count in sorted(counts.items()):
        print(f"{count:7d}  {what}")
    print(f"{seed - chosen.seed} programs, {kernels} kernels, {failed} failures")
    sys.exit(1 if failed else 0)


def _stop(*_: object) -> None:
    raise TooSlow


if __name__ == "__main__":
    signal.signal(signal.SIGALRM, _stop)
    main()
