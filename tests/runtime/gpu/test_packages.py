"""Packages with code for GPUs, run by the runtime over a driver and libraries that are not NVIDIA's."""

import gc
import random
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

import precast
from precast.artifact.gpu_code import gpu_code_from_bytes
from precast.artifact.package import open_package
from precast.cli.package_summary import summary_of
from precast.errors import ArtifactError, GpuError, InputValueError, LoweringError
from precast.runtime.gpu import libraries
from precast.runtime.gpu.arrays import DeviceArray
from precast.runtime.gpu.device import gpu
from tests.native.lowering.cases import floats, integers


def packaged(module: Any, args: Any, folder: Any, targets: tuple[str, ...] = ("cuda:sm_90",), **others: Any) -> Any:
    if not isinstance(module, nn.Module):
        module = Function(module)
    return precast.package(module, args, path=folder / "model.precast", targets=targets, **others)


def on_gpu(module: Any, args: Any, folder: Any, **others: Any) -> precast.runtime.Model:
    return precast.runtime.load(packaged(module, args, folder, **others), device="cuda")


class Function(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: torch.Tensor) -> Any:
        return self.function(*args)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x
        self.calls += 1
        return self.count * self.calls


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(24, 48), nn.LayerNorm(48), nn.GELU(), nn.Linear(48, 10), nn.Softmax(-1)).eval()


def attention() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoderLayer(16, 2, 32, batch_first=True).eval()


def images() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, groups=4),
        nn.ConvTranspose2d(8, 4, 2, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 5),
    ).eval()  # fmt: skip


MODELS: dict[str, tuple[Callable[[], Any], Callable[[], tuple[torch.Tensor, ...]]]] = {
    "layers": (layers, lambda: (floats(8, 24),)),
    "attention": (attention, lambda: (floats(2, 5, 16),)),
    "images": (images, lambda: (floats(2, 3, 9, 9),)),
    "lines": (lambda: nn.Conv1d(3, 4, 3, padding=1, dilation=2), lambda: (floats(2, 3, 12),)),
    "half": (lambda: lambda x, y: F.gelu(x @ y, approximate="tanh"),
             lambda: (floats(6, 16, dtype=torch.bfloat16), floats(16, 8, seed=1, dtype=torch.bfloat16))),
    "stacks": (lambda: lambda x, y: (x @ y.mT).softmax(-1).mT @ x, lambda: (floats(3, 4, 5), floats(3, 6, 5, seed=1))),
    "places": (lambda: lambda x, i: (x[i], x.gather(1, i[:, None]), F.embedding(i, x).sum(0)),
               lambda: (floats(9, 5), integers(9, low=0, high=5))),
    "sums": (lambda: lambda x, i: torch.zeros(9, 5).index_add(0, i, x),
             lambda: (floats(4, 5), integers(4, low=0, high=9))),
    "running sums": (
        lambda: lambda x, y: (x.cumsum(1), y.cumsum(0), y.double().cumprod(0), y.half().cumsum(-1)),
        lambda: (floats(1, 1030), integers(3, 4)),
    ),
    "attention without masks": (lambda: lambda q, k, v: F.scaled_dot_product_attention(q, k, v, scale=0.3),
                                lambda: tuple(floats(2, 3, size, 20, seed=size) for size in (70, 90, 90))),
    "causal attention": (lambda: lambda q, k: F.scaled_dot_product_attention(q, k.mT, k.mT * 2, is_causal=True),
                         lambda: (floats(1, 2, 70, 32), floats(1, 2, 32, 70, seed=1))),
    "attention with a mask": (
        lambda: lambda q, m: F.scaled_dot_product_attention(q, q * 2, q + 1, attn_mask=m),
        lambda: (floats(2, 2, 9, 8), torch.tensor([[True] * 9, [False] * 9, *([[False, True, True] * 3] * 7)])[None]),
    ),
    "choice": (lambda: lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: x.cos(), (x,)),
               lambda: (floats(6),)),
    "complex": (lambda: lambda x: (x * x).abs() + x.real, lambda: (torch.complex(floats(5), floats(5, seed=1)),)),
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_models_compute_what_eager_does(fake_gpu, tmp_path, name: str):
    make, make_args = MODELS[name]
    model, args = make(), make_args()
    with torch.no_grad():
        expected = model(*args)
    loaded = on_gpu(model, args, tmp_path)
    assert loaded.target == "cuda:sm_90"
    torch.testing.assert_close(loaded(*args), expected, rtol=2e-2 if name == "half" else 1e-4, atol=1e-5)
    assert all(check.passed for check in loaded.verify())
    if name != "half":
        arrays = loaded(*(each.numpy() for each in args))
        torch.testing.assert_close(tree_map(torch.from_numpy, arrays), expected, rtol=1e-4, atol=1e-5)


def test_dynamic_sizes_run(fake_gpu, tmp_path):
    model, batch = layers(), torch.export.Dim("batch", min=1, max=50)
    loaded = on_gpu(model, (floats(8, 24),), tmp_path, dynamic_shapes=({0: batch},))
    for size in (1, 8, 13):
        torch.testing.assert_close(loaded(floats(size, 24)), model(floats(size, 24)).detach())
    with pytest.raises(InputValueError):
        loaded(floats(60, 24))


def test_state_is_updated_on_the_gpu(fake_gpu, tmp_path):
    model, x = Counting(), floats(3)
    loaded = on_gpu(model, (x,), tmp_path)
    for _ in range(3):
        torch.testing.assert_close(loaded(x), model(x))
    np.testing.assert_array_equal(loaded.state["count"], model.count)
    loaded.state["count"] = np.ones(3, np.float32)
    model.count.fill_(1)
    torch.testing.assert_close(loaded(x), model(x))
    assert loaded.state["calls"] == 4


def test_random_numbers_are_those_of_the_cpu(fake_gpu, tmp_path):
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, 0.5) + torch.rand(20)

    path = packaged(function, (floats(20),), tmp_path, ("cuda:sm_90", "native"))
    mine, theirs = (precast.runtime.load(path, device=device) for device in ("cuda", "cpu"))
    first = mine(floats(20))
    torch.testing.assert_close(first, theirs(floats(20)))
    assert not torch.equal(mine(floats(20)), first)


def test_arrays_on_the_gpu_stay_there(fake_gpu, tmp_path):
    model, x = layers(), floats(8, 24)
    loaded = on_gpu(model, (x,), tmp_path)
    before, first = fake_gpu.allocated, gpu(0)
    block = first.allocate(x.nbytes)
    first.upload(block.address, x.numpy())
    result = loaded(DeviceArray(first, block, block.address, "f32", (8, 24), (24, 1)))
    assert isinstance(result, DeviceArray)
    capsule = result.__dlpack__(stream=-1)
    np.testing.assert_allclose(result.numpy(), model(x).detach(), rtol=1e-5, atol=1e-6)
    # As if it was turned on its side.
    turned = DeviceArray(first, block, block.address, "f32", (8, 24), (1, 8))
    expected = model(torch.as_strided(x, (8, 24), (1, 8))).detach()
    np.testing.assert_allclose(loaded(turned).numpy(), expected, rtol=1e-5, atol=1e-6)
    del result, block, turned
    # What was lent is let go of by the next one who lends.
    first.hold(None)
    gc.collect()
    assert fake_gpu.allocated == before + 8 * 10 * 4
    del capsule
    assert fake_gpu.allocated == before


def test_reversed_arrays_are_refused(fake_gpu, tmp_path):
    first = gpu(0)
    block = first.allocate(16)

    class Other:
        """An array of another library."""

        dtype, shape = np.dtype(np.float32), (4,)

        def __dlpack_device__(self) -> tuple[int, int]:
            return 2, 0

        def __dlpack__(self, **_: object) -> object:
            return DeviceArray(first, block, block.address + 12, "f32", (4,), (-1,)).__dlpack__(stream=-1)

    loaded = on_gpu(torch.sin, (floats(4),), tmp_path)
    with pytest.raises(InputValueError, match="reversed"):
        loaded(Other())


def test_arrays_of_others_are_kept_until_they_are_read(fake_gpu, tmp_path):
    path = packaged(torch.sin, (floats(4),), tmp_path)

    def call() -> Any:
        block = first.allocate(16)
        first.upload(block.address, floats(4).numpy())
        loaded(DeviceArray(first, block, block.address, "f32", (4,), (1,)))
        return weakref.ref(block)

    with fake_gpu.settings(pending=600):
        loaded, first = precast.runtime.load(path, device="cuda"), gpu(0)
        kept = [call() for _ in range(3)]
        assert all(each() is not None for each in kept)
        fake_gpu.driver.fake_set(b"pending", 0)
        call()
        assert all(each() is None for each in kept)


def test_memory_is_given_back(fake_gpu, tmp_path):
    gc.collect()
    before = fake_gpu.allocated
    loaded = on_gpu(layers(), (floats(8, 24),), tmp_path)
    loaded(floats(8, 24))
    del loaded
    gc.collect()
    assert fake_gpu.allocated == before


def test_code_for_both_is_in_one_file(fake_gpu, tmp_path):
    model, x = layers(), floats(8, 24)
    path = packaged(model, (x,), tmp_path, ("native", "cuda:sm_80", "cuda:sm_90"))
    loaded = {device: precast.runtime.load(path, device=device) for device in (None, "cpu", "cuda", "cuda:0")}
    assert [each.target for each in loaded.values()] == ["native", "native", "cuda:sm_90", "cuda:sm_90"]
    for each in loaded.values():
        torch.testing.assert_close(each(x), model(x).detach())
    with fake_gpu.settings(major=8, minor=6):
        assert precast.runtime.load(path, device="cuda").target == "cuda:sm_80"
    with fake_gpu.settings(init=100):
        assert precast.runtime.load(path).target == "native"


def test_what_needs_torch_is_refused_with_its_line(tmp_path):
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sort().values + 1

    with pytest.raises(LoweringError, match=r"(?s)without torch:.*sort.*test_packages.py:\d+"):
        packaged(function, (floats(9),), tmp_path)


@pytest.mark.parametrize(
    ("settings", "device", "expected"),
    [
        ({"init": 100}, "cuda", "finds no GPU"),
        ({"init": 3}, "cuda", "does not start"),
        ({"devices": 0}, "cuda", "there is no GPU"),
        ({}, "cuda:1", "no GPU number 1.*finds 1"),
        ({"major": 8}, "cuda", "none of the file's code runs on Fake.*sm_80.*cuda:sm_90"),
        ({"minor": 1}, "cuda", "sm_91"),
        ({"version": 11080}, "cuda", "driver is too old.*11.8"),
        ({"load": 222}, "cuda", "does not accept the kernel"),
    ],
)
def test_what_is_missing_is_told(fake_gpu, tmp_path, settings: dict[str, int], device: str, expected: str):
    path = packaged(torch.sin, (floats(3),), tmp_path)
    with fake_gpu.settings(**settings), pytest.raises(GpuError, match=f"(?s){expected}"):
        precast.runtime.load(path, device=device)
    assert precast.runtime.load(path, device="cuda").target == "cuda:sm_90"


def test_a_missing_library_is_told(fake_gpu, tmp_path, monkeypatch):
    path = packaged(lambda x: x @ x, (floats(3, 3),), tmp_path)
    libraries.load.cache_clear()
    monkeypatch.setattr(libraries, "candidates", lambda library: iter(["libnothing.so.1"]))
    with pytest.raises(GpuError, match=r"(?s)libcublasLt.so.13 is not.*matrix products.*pip install nvidia-cublas"):
        precast.runtime.load(path, device="cuda")
    monkeypatch.undo()
    libraries.load.cache_clear()


def test_a_file_without_code_for_gpus_says_so(fake_gpu, tmp_path):
    path = packaged(torch.sin, (floats(3),), tmp_path, ("native",))
    with pytest.raises(ArtifactError, match=r"(?s)no code for GPUs.*native.*cuda:sm_90"):
        precast.runtime.load(path, device="cuda")
    with pytest.raises(InputValueError, match="not a device"):
        precast.runtime.load(path, device="tpu")


def test_changed_code_is_not_loaded(fake_gpu, tmp_path):
    path = packaged(torch.sin, (floats(3),), tmp_path)
    data = bytearray(path.read_bytes())
    data[data.index(b"\x7fELF")] ^= 1
    path.write_bytes(data)
    with pytest.raises(ArtifactError):
        precast.runtime.load(path, device="cuda")


def test_files_say_what_runs_here(fake_gpu, tmp_path):
    path = packaged(torch.sin, (floats(3),), tmp_path, ("cuda:sm_80", "cuda:sm_90", "native"))
    package = open_package(path)

    def running() -> list[str]:
        return [each["name"] for each in summary_of(package, path)["targets"] if each["runs here"]]

    assert running() == ["cuda:sm_90", "native"]
    with fake_gpu.settings(init=100):
        assert running() == ["native"]
    assert precast.runtime.load(path, target="cuda:sm_90").target == "cuda:sm_90"


def test_what_is_around_the_code_is_checked(fake_gpu, tmp_path):
    package = open_package(packaged(layers(), (floats(8, 24),), tmp_path))
    data = package.code(package.manifest.targets[0].file)
    assert gpu_code_from_bytes(data).kernels
    length = 8 + int.from_bytes(data[:8], "little")
    generator, refused = random.Random(0), 0
    for _ in range(400):
        changed = bytearray(data)
        changed[generator.randrange(length)] = generator.choice(b'0123456789[]{}",:-x')
        try:
            gpu_code_from_bytes(bytes(changed))
        except ArtifactError:
            refused += 1
    assert refused > 200


def test_out_of_memory_leaves_the_model_as_it_was(fake_gpu, tmp_path):
    size = torch.export.Dim("size", min=1, max=2**44)
    loaded = on_gpu(lambda x, y: (x.expand(y.shape[0]).sin(), y.sum()), (floats(1), floats(5)), tmp_path,
                    dynamic_shapes=((None, {0: size}),))  # fmt: skip
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (2**39,), (0,))
    with pytest.raises(MemoryError):
        loaded(np.ones(1, np.float32), huge)
    torch.testing.assert_close(loaded(floats(1), floats(5))[0], floats(1).sin().expand(5))


def test_cubins_are_in_the_file(tmp_path):
    def function(x: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(x, x, x, is_causal=True).cumsum(1)

    path = packaged(function, (floats(1, 2, 70, 32, dtype=torch.bfloat16),), tmp_path, ("cuda:sm_80", "cuda:sm_90"))
    data = path.read_bytes()
    assert [data.count(f'"symbol":"{name}"'.encode()) for name in ("attention", "running_sum")] == [2, 2]
    assert data.count(b"\x7fELF") >= 4
