"""Packages with code for this machine's GPU: made here, run in a process without torch, compared with eager."""

import json
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import precast
from benchmarks.gpu.workloads import median_milliseconds
from benchmarks.peers.architectures import ARCHITECTURES

ARCHITECTURES_TO_RUN = ("bert", "resnet50", "gpt2", "mobilenet", "unet", "vit", "llama", "convnext")
SECONDS = 240


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def layers(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 1024), nn.LayerNorm(1024), nn.GELU(), nn.Linear(1024, 1000), nn.ReLU(), nn.Linear(1000, 77),
    ).to(dtype).eval()  # fmt: skip


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, groups=32),
        nn.Conv2d(32, 64, 1), nn.ConvTranspose2d(64, 16, 2, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(16, 10),
    ).eval()  # fmt: skip


def attention() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(256, 8, 512, batch_first=True).eval()


Case = tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]]]
HALF = torch.bfloat16
CASES: dict[str, Case] = {
    "layers": (layers, lambda: (floats(64, 256),)),
    "layers in bfloat16": (lambda: layers(HALF), lambda: (floats(64, 256, dtype=HALF),)),
    "images": (images, lambda: (floats(4, 3, 40, 40),)),
    "lines": (lambda: nn.Conv1d(8, 16, 3, padding=1, dilation=2), lambda: (floats(2, 8, 50),)),
    "attention": (attention, lambda: (floats(4, 65, 256),)),
    "stacks": (lambda: Function(lambda x, y: (x @ y.mT).softmax(-1).mT @ x),
               lambda: (floats(3, 40, 5), floats(3, 60, 5, seed=1))),
    "places": (lambda: Function(lambda x, i: (x[i], x.gather(1, i[:, None] % 5), F.embedding(i, x).sum(0))),
               lambda: (floats(90, 50), torch.arange(90).flip(0))),
    "sums": (lambda: Function(lambda x, i: x.new_zeros(9, 500).index_add(0, i, x)),
             lambda: (floats(4, 500), torch.tensor([1, 3, 3, 8]))),
    "choice": (lambda: Function(lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,))),
               lambda: (floats(6000),)),
    "softmax of long rows": (lambda: Function(lambda x: (x.softmax(-1), x.sum(), x.var(0))),
                             lambda: (floats(33, 50000),)),
}  # fmt: skip


def packages(report: Callable[..., None]) -> None:
    """Every case without torch, then with torch's tensors on the GPU, then what has to fail."""
    with tempfile.TemporaryDirectory() as folder:
        _packages(report, Path(folder))


def _packages(report: Callable[..., None], folder: Path) -> None:
    major, minor = torch.cuda.get_device_capability()
    target, started = f"cuda:sm_{major}{minor}", time.monotonic()
    cases = dict(CASES)
    for name in ARCHITECTURES_TO_RUN:
        architecture = ARCHITECTURES[name]
        cases[name] = (lambda made=architecture: made.make_model().eval(),
                       lambda made=architecture: (made.make_inputs(2),))  # type: ignore[misc]  # fmt: skip
    made = []
    for name, (make, make_args) in cases.items():
        if time.monotonic() - started > SECONDS:
            report(case=name, right=False, problem="no time was left")
            continue
        try:
            made.append(_prepare(report, folder, name, make(), make_args(), target))
        except Exception:  # noqa: BLE001  # told, and the next one is tried
            report(case=name, right=False, problem=traceback.format_exc(limit=-8)[-2500:])
    _without_torch(report, folder)
    for name, model, args in made:
        _with_torch(report, folder, name, model, args)
    for check in (_other_gpus, _failed_check, _state):
        try:
            report(case=check.__name__, right=True, found=check(folder, target))
        except Exception:  # noqa: BLE001
            report(case=check.__name__, right=False, problem=traceback.format_exc(limit=-8)[-2500:])


Prepared = tuple[str, nn.Module, tuple[torch.Tensor, ...]]


def _prepare(
    report: Callable[..., None], folder: Path, name: str, model: nn.Module, args: tuple[torch.Tensor, ...], target: str
) -> Prepared:
    """Write a package and what eager gives on the GPU, and how far that is from double precision."""
    started = time.perf_counter()
    precast.package(model, args, path=folder / f"{name}.precast", targets=[target], samples=False)
    spent = time.perf_counter() - started
    model = model.cuda()
    on_gpu = tuple(each.cuda() for each in args)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        eager = _flat(model(*on_gpu))
        exact = _flat(model.double()(*(each.double() if each.is_floating_point() else each for each in on_gpu)))
    dtypes = {each.dtype for each in (*args, *model.parameters()) if each.is_floating_point()} - {torch.float64}
    model = model.to(HALF if HALF in dtypes else torch.float32)
    limits = [
        4 * _distance(mine, true) + 1e-5 * float(true.abs().max()) for mine, true in zip(eager, exact, strict=True)
    ]
    arrays = {f"input {number}": _bits(each) for number, each in enumerate(args)}
    arrays |= {f"exact {number}": each.double().cpu().numpy() for number, each in enumerate(exact)}
    np.savez(folder / f"{name}.npz", limits=np.array(limits), **arrays)
    size = (folder / f"{name}.precast").stat().st_size
    report(case=name, what="made", right=True, seconds=spent, megabytes=size >> 20, limits=limits)
    return name, model, on_gpu


def _without_torch(report: Callable[..., None], folder: Path) -> None:
    """A process that must not import torch runs all of it, numpy in and numpy out."""
    command = [sys.executable, "-m", "benchmarks.gpu.run_packages", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("{"):
            report(**json.loads(line))
    if done.returncode:
        report(case="without torch", right=False, problem=(done.stdout + done.stderr)[-3000:])


def _with_torch(
    report: Callable[..., None], folder: Path, name: str, model: nn.Module, args: tuple[torch.Tensor, ...]
) -> None:
    """Torch's tensors on the GPU, which stay there, on another stream than the usual one as well."""
    try:
        loaded = precast.runtime.load(folder / f"{name}.precast", device="cuda")
        stored = np.load(folder / f"{name}.npz")
        with torch.cuda.stream(torch.cuda.Stream()):
            moved = tuple(each + 0 for each in args)
            results = [each + 0 for each in _flat(loaded(*moved))]
        torch.cuda.synchronize()
        far = [
            _distance(each.cpu(), torch.from_numpy(stored[f"exact {number}"])) for number, each in enumerate(results)
        ]
        right = all(each.is_cuda for each in results) and all(
            mine <= limit for mine, limit in zip(far, stored["limits"], strict=True)
        )
        with torch.no_grad():
            times = {
                "package": median_milliseconds(lambda: loaded(*args)),
                "eager": median_milliseconds(lambda: model(*args)),
            }
        report(case=name, what="with torch", right=bool(right), errors=far, ms=times)
    except Exception:  # noqa: BLE001
        report(case=name, what="with torch", right=False, problem=traceback.format_exc(limit=-8)[-2500:])


def _other_gpus(folder: Path, target: str) -> str:
    """Code for another GPU is refused, code for the CPU beside it runs."""
    path = precast.package(Function(torch.sin), (floats(9),), path=folder / "other.precast",
                           targets=["cuda:sm_80", "native"])  # fmt: skip
    try:
        precast.runtime.load(path, device="cuda")
    except precast.errors.GpuError as error:
        torch.testing.assert_close(precast.runtime.load(path)(floats(9)), floats(9).sin())
        return str(error)
    raise AssertionError("code for sm_80 was taken")


def _failed_check(folder: Path, target: str) -> str:
    """A place outside of a tensor ends in an error that says so, in a process of its own: the GPU is lost to it."""
    path = precast.package(Function(lambda x, i: x[i]), (floats(9), torch.tensor([1])), path=folder / "outside.precast",
                           targets=[target])  # fmt: skip
    script = (
        "import sys, numpy as np; sys.modules['torch'] = None; import precast.runtime; "
        f"model = precast.runtime.load({str(path)!r}, device='cuda'); "
        "print(model(np.ones(9, np.float32), np.array([8]))); model(np.ones(9, np.float32), np.array([10**6]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False)
    assert "[1.]" in done.stdout, done.stdout + done.stderr
    assert done.returncode, "nothing was noticed"
    assert "IndexError" in done.stderr, done.stderr
    return done.stderr[-600:]


class _Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(300))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x
        return self.count + F.dropout(x, 0.5)


def _state(folder: Path, target: str) -> str:
    """State is updated on the GPU; random numbers are those of the CPU."""
    path = precast.package(_Counting(), (floats(300),), path=folder / "state.precast", targets=[target, "native"])
    loaded = {device: precast.runtime.load(path, device=device) for device in ("cpu", "cuda")}
    for _ in range(3):
        mine, theirs = (each(floats(300)) for each in loaded.values())
        torch.testing.assert_close(mine, theirs)
    np.testing.assert_allclose(loaded["cuda"].state["count"], floats(300) * 3, rtol=1e-6)
    return repr(loaded["cuda"])


def _flat(value: Any) -> list[torch.Tensor]:
    return [each for each in torch.utils._pytree.tree_leaves(value) if isinstance(each, torch.Tensor)]


def _distance(mine: torch.Tensor, true: torch.Tensor) -> float:
    return float((mine.double() - true.double()).abs().max())


def _bits(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    if tensor.dtype == HALF:
        return tensor.view(torch.int16).numpy().view(np.uint16)
    return tensor.numpy()
