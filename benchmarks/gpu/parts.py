"""The parts of a check on a GPU, each in a process of its own: ``python -m benchmarks.gpu.parts NAME OUT ARGUMENTS``.

Each prints what it does as it goes, and adds lines of JSON to ``OUT/NAME.jsonl``.
"""

import copy
import json
import logging
import sys
import time
import traceback
import types
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import precast
from benchmarks.gpu.packages import packages

Report = Callable[..., None]


def floats(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).cuda()


def whole(*shape: int, low: int = -9, high: int = 10, seed: int = 0) -> torch.Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(seed)).cuda()


FUNCTIONS: dict[str, tuple[Callable[..., Any], Callable[[], list[torch.Tensor]]]] = {
    "chain": (lambda x, y: (x.exp() * y + 1).tanh().bfloat16(), lambda: [floats(500, 333), floats(333, seed=1)]),
    "transposed": (lambda x: x.T * 2 + x.T.sigmoid(), lambda: [floats(400, 170)]),
    "half": (lambda x: F.gelu(x) * x, lambda: [floats(70, 500).half()]),
    "whole_numbers": (lambda x, y: (x // 3 + x % y) * (x > 2), lambda: [whole(9000), whole(9000, low=1, seed=1)]),
    "small_numbers": (lambda x: (x * 100 + 7).abs() ^ 3, lambda: [whole(6000).to(torch.int8)]),
    "bools": (lambda x: ((x > 0) & (x < 1)).logical_xor(x > 0.5), lambda: [floats(7000)]),
    "doubles": (lambda x: x.sum(1).exp() / 3, lambda: [floats(40, 300).double()]),
    "row_sum": (lambda x: x.sum(-1), lambda: [floats(900, 700)]),
    "column_sum": (lambda x: x.sum(0), lambda: [floats(12000, 60)]),
    "wide_column_sum": (lambda x: x.sum(0), lambda: [floats(8192, 768).bfloat16()]),
    "whole_sum": (lambda x: x.mean() * x, lambda: [floats(1300, 700)]),
    "softmax": (lambda x: x.softmax(-1), lambda: [floats(900, 700)]),
    "softmax_many": (lambda x: x.softmax(-1), lambda: [floats(9000, 33).bfloat16()]),
    "long_softmax": (lambda x: x.softmax(-1), lambda: [floats(20, 50257)]),
    "largest": (lambda x: x.amax(0) - x.amin(1, keepdim=True), lambda: [floats(300, 300)]),
    "layer_norm": (lambda x, w: F.layer_norm(x, (768,), w, w), lambda: [floats(600, 768), floats(768, seed=1)]),
    "group_norm": (lambda x: F.group_norm(x, 2), lambda: [floats(2, 4, 9000)]),
    "argmax": (lambda x: x.argmax(1), lambda: [floats(800, 300)]),
    "gathered": (lambda x, i: x[i] + x.gather(0, i[:, None]), lambda: [floats(200, 40), whole(90, low=0, high=200)]),
    "scattered": (lambda x, i: x.new_zeros(10, 40).index_add(0, i, x), lambda: [floats(2000, 40), whole(2000, low=0)]),
    "put_together": (lambda x, y: torch.cat([x, y * 2, x], 1).flip(0), lambda: [floats(60, 50), floats(60, 90)]),
    "pooled": (lambda x: F.max_pool2d(x, 3, 2) + F.avg_pool2d(x, 3, 2), lambda: [floats(20, 30, 59, 59)]),
    "cross_entropy": (lambda x, y: F.cross_entropy(x, y), lambda: [floats(1200, 5000), whole(1200, low=0, high=5000)]),
    "product": (lambda x, y: F.relu(x @ y + 1).sum(0), lambda: [floats(120, 200), floats(200, 80, seed=1)]),
    "cumulative": (lambda x: x.cumsum(1) * 2, lambda: [floats(30, 700)]),
    "batch_norm": (lambda x: F.batch_norm(x, None, None, training=True), lambda: [floats(16, 32, 28, 28)]),
}  # fmt: skip


def kernels(report: Report) -> None:
    """Functions of each kind against eager."""
    for name, (function, make) in FUNCTIONS.items():
        try:
            inputs = make()
            with torch.no_grad():
                ours, theirs = precast.compile(function)(*inputs), function(*inputs)
                exact = function(*(each.double() if each.is_floating_point() else each for each in inputs))
            if ours.dtype.is_floating_point:
                sizes = [(each.double() - exact.double()).norm() / exact.double().norm() for each in (ours, theirs)]
                errors = [each.item() for each in sizes]
                report(case=name, error=errors[0], eager=errors[1], right=errors[0] <= 4 * errors[1] + 1e-6)
            else:
                report(case=name, right=torch.equal(ours, theirs))
        except Exception as problem:  # noqa: BLE001  # the others are looked at as well
            report(case=name, right=False, problem=traceback.format_exc(limit=-8), kind=type(problem).__name__)


SKIPPED = ("empty", "new_empty", "jiterator")
"""Of no certain value; or called beside torch's dispatcher, so that nothing can trace them."""
SEEDED = frozenset({
    "randn_like", "rand_like", "randint", "randint_like", "randn", "rand", "normal", "normal.number_mean", "bernoulli",
    "multinomial", "nn.functional.rrelu", "nn.functional.multi_head_attention_forward",
})  # fmt: skip
"""Samples that set a seed inside of what is compiled."""


def operators(report: Report, part: str, parts: str, dtype: str) -> None:
    """Torch's own operator database, forward and backward, against eager on the GPU."""
    for missing in ("expecttest", "hypothesis"):
        try:
            __import__(missing)
        except ImportError:
            stub = types.ModuleType(missing)
            stub.TestCase = object  # type: ignore[attr-defined]
            sys.modules[missing] = stub
    from torch.testing._internal.common_methods_invocations import op_db

    kind = getattr(torch, dtype)
    for op in op_db[int(part) :: int(parts)]:
        name = f"{op.name}.{op.variant_test_name}".rstrip(".")
        if kind not in op.supported_dtypes("cuda") or name.startswith(SKIPPED) or name in SEEDED:
            continue
        try:
            with_gradients = op.supports_autograd and kind in op.supported_backward_dtypes("cuda")
            sample = next(iter(op.sample_inputs("cuda", kind, requires_grad=with_gradients)), None)
            if sample is None:
                continue
            torch.manual_seed(0)
            theirs = _outcome(op.get_op(), sample)
            exact = _exact_outcome(op.get_op(), sample)
        except Exception:  # noqa: BLE001  # eager does not do it either
            continue
        try:
            torch.manual_seed(0)
            compiled = precast.compile(op.get_op(), options={"random": "eager"})
            ours = _outcome(compiled, sample)
            worst = _worst(ours, theirs)
            limit = {torch.float32: 2e-4, torch.bfloat16: 3e-2, torch.float16: 5e-3}.get(kind, 1e-9)
            found = {"error": worst}
            if worst > limit and exact is not None:
                # Where numbers cancel out, eager's own are as far from float64.
                errors = [_worst(each, exact, same_types=False) for each in (ours, theirs)]
                found |= {"to_float64": errors[0], "eagers_to_float64": errors[1]}
                limit = worst if errors[0] <= 2 * errors[1] + 1e-6 else limit
            report(case=name, dtype=dtype, **found, right=worst <= limit)
        except Exception as problem:
            text = f"{type(problem).__name__}: {str(problem)[:600]}"
            report(case=name, dtype=dtype, right=False, problem=text, trace=traceback.format_exc(limit=-6)[-1500:])
            if "CUDA error" in text or "device-side" in text:
                raise


def _outcome(function: Callable[..., Any], sample: Any) -> list[torch.Tensor | None]:
    result = function(sample.input, *sample.args, **sample.kwargs)
    outputs = [each for each in torch.utils._pytree.tree_leaves(result) if isinstance(each, torch.Tensor)]
    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    wanted = [each for each in leaves if isinstance(each, torch.Tensor) and each.requires_grad]
    made = [each for each in outputs if each.requires_grad]
    # Random ones: the gradient of a norm's sum is zero, and all that is left of it is rounding.
    tangents = [_tangent(each, seed) for seed, each in enumerate(made)]
    gradients = torch.autograd.grad(made, wanted, tangents, allow_unused=True) if made else []
    return [*(each.detach() for each in outputs), *gradients]


def _tangent(like: torch.Tensor, seed: int) -> torch.Tensor:
    wide = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(like.shape, generator=torch.Generator().manual_seed(seed), dtype=wide).to(like)


def _exact_outcome(function: Callable[..., Any], sample: Any) -> list[torch.Tensor | None] | None:
    """The same in double precision; None where torch has no such kernel."""

    def doubled(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        wide = value.detach().to(torch.complex128 if value.is_complex() else torch.float64)
        return wide.requires_grad_(value.requires_grad)

    try:
        torch.manual_seed(0)
        return _outcome(function, sample.transform(doubled))
    except Exception:  # noqa: BLE001  # then eager alone is compared with
        return None


def _worst(ours: list[torch.Tensor | None], theirs: list[torch.Tensor | None], *, same_types: bool = True) -> float:
    assert len(ours) == len(theirs), f"{len(ours)} results, not {len(theirs)}"
    worst = 0.0
    for mine, expected in zip(ours, theirs, strict=True):
        if mine is None or expected is None:
            assert (mine is None) == (expected is None), "a gradient is missing"
            continue
        assert mine.shape == expected.shape, f"{tuple(mine.shape)} is not {tuple(expected.shape)}"
        assert mine.dtype == expected.dtype or not same_types, f"{mine.dtype} is not {expected.dtype}"
        assert mine.device == expected.device, f"{mine.device} is not {expected.device}"
        if not mine.numel():
            continue
        a, b = (each.to(torch.complex128 if each.is_complex() else torch.float64) for each in (mine, expected))
        is_finite = a.isfinite() & b.isfinite()
        assert torch.equal(a.isfinite(), b.isfinite()), "not finite elsewhere"
        if is_finite.any():
            size = b[is_finite].abs().max().clamp_min(1e-3)
            worst = max(worst, ((a - b)[is_finite].abs().max() / size).item())
    return worst


def graphs(report: Report) -> None:
    """What recordings must not break: results are the caller's, random numbers go on, two models take turns."""

    def case(name: str, check: Callable[[], object]) -> None:
        try:
            found = check()
            report(case=name, right=True, found=found)
        except Exception:  # noqa: BLE001
            report(case=name, right=False, problem=traceback.format_exc(limit=-8))

    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 64)).cuda()
    compiled = precast.compile(model)

    def results_are_kept() -> None:
        with torch.no_grad():
            inputs = [floats(512, 64, seed=seed) for seed in range(12)]
            kept = [compiled(x) for x in inputs]
            for x, mine in zip(inputs, kept, strict=True):
                torch.testing.assert_close(mine, model(x), rtol=1e-3, atol=1e-4)

    def gradients_are_right() -> None:
        for seed in range(8):
            x = floats(512, 64, seed=seed)
            compiled(x).square().mean().backward()
            mine = [each.grad.clone() for each in model.parameters()]
            model.zero_grad()
            model(x).square().mean().backward()
            for a, each in zip(mine, model.parameters(), strict=True):
                torch.testing.assert_close(a, each.grad, rtol=1e-3, atol=1e-5)
            model.zero_grad()

    def two_forwards_before_backwards() -> None:
        for seed in range(8):
            x, y = floats(512, 64, seed=seed), floats(512, 64, seed=seed + 50)
            a, b = compiled(x), compiled(y)
            (a.square().mean() + b.square().mean()).backward()
            mine = [each.grad.clone() for each in model.parameters()]
            model.zero_grad()
            (model(x).square().mean() + model(y).square().mean()).backward()
            for mine_, each in zip(mine, model.parameters(), strict=True):
                torch.testing.assert_close(mine_, each.grad, rtol=1e-3, atol=1e-5)
            model.zero_grad()

    def accumulated() -> None:
        model.zero_grad()
        for seed in range(8):
            compiled(floats(512, 64, seed=seed)).square().mean().backward()
        mine = [each.grad.clone() for each in model.parameters()]
        model.zero_grad()
        for seed in range(8):
            model(floats(512, 64, seed=seed)).square().mean().backward()
        for a, each in zip(mine, model.parameters(), strict=True):
            torch.testing.assert_close(a, each.grad, rtol=1e-3, atol=1e-5)

    def dropout_goes_on() -> float:
        dropped = precast.compile(lambda x: F.dropout(x, 0.5))
        x = torch.ones(10000, device="cuda")
        torch.manual_seed(5)
        seen = [dropped(x) for _ in range(8)]
        assert len({tuple(each[:40].tolist()) for each in seen}) == 8, "the same numbers twice"
        torch.manual_seed(5)
        assert torch.equal(dropped(x), seen[0]), "the seed does not decide"
        on_cpu = precast.compile(lambda x: F.dropout(x, 0.5))
        torch.manual_seed(5)
        assert torch.equal(on_cpu(x.cpu()), seen[0].cpu()), "other numbers than on the CPU"
        return float(torch.stack(seen).mean())

    def streams() -> None:
        function = precast.compile(lambda x: (x * 2 + 1).softmax(-1))
        stream = torch.cuda.Stream()
        for seed in range(6):
            x = floats(2000, 700, seed=seed)
            with torch.cuda.stream(stream):
                stream.wait_stream(torch.cuda.default_stream())
                y = function(x)
            torch.cuda.default_stream().wait_stream(stream)
            torch.testing.assert_close(y, (x * 2 + 1).softmax(-1))

    def determinism() -> None:
        x, i = floats(100_000, 8), whole(100_000, low=0, high=7)
        torch.use_deterministic_algorithms(True)
        try:
            function = precast.compile(lambda x, i: x.new_zeros(7, 8).index_add(0, i, x))
            seen = [function(x, i) for _ in range(6)]
        finally:
            torch.use_deterministic_algorithms(False)
        assert all(torch.equal(each, seen[0]) for each in seen), "runs differ"

    def products_in_tf32() -> None:
        x = floats(512, 512)
        with torch.no_grad():
            function = precast.compile(lambda x: x @ x)
            exact, before = x.double() @ x.double(), torch.backends.cuda.matmul.allow_tf32
            far = []
            for torch.backends.cuda.matmul.allow_tf32 in (False, True):
                far.append([float((function(x) - exact).abs().max()) for _ in range(6)])
            torch.backends.cuda.matmul.allow_tf32 = before
        assert max(far[0]) < 1e-3 < min(far[1]), far

    def memory_is_given_back() -> int:
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        big = precast.compile(nn.Sequential(nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 2048)).cuda())
        for seed in range(6):
            big(floats(4096, 2048, seed=seed)).sum().backward()
        del big
        import gc

        gc.collect()
        torch.cuda.synchronize()
        left = torch.cuda.memory_allocated() - before
        assert left < 4 * 2**20, f"{left} bytes are still there"
        return left

    def out_of_memory() -> None:
        small = floats(100)
        grow = precast.compile(lambda x: torch.cat([x.sin()] * 4))
        try:
            grow(torch.empty(40 * 2**30, dtype=torch.uint8, device="cuda").view(torch.float32))
        except torch.OutOfMemoryError:
            pass
        else:
            raise AssertionError("there was enough memory")
        torch.testing.assert_close(grow(small), torch.cat([small.sin()] * 4))

    for name, check in list(locals().items()):
        if (
            callable(check)
            and getattr(check, "__module__", "") == __name__
            and name not in ("case", "report", "compiled")
        ):
            case(name, check)


def models(report: Report, name: str) -> None:
    """Gradients against float32, beside eager's; and what the time is spent on."""
    from benchmarks.gpu.workloads import make, median_milliseconds, training_step

    _watch_graphs(report, name)
    logging.basicConfig(level=logging.INFO, stream=sys.stdout)
    warnings.simplefilter("default")
    workload = make(name)
    exact = _gradients(workload.model, lambda: workload.model(workload.inputs, workload.labels))
    eager = _gradients(workload.model, lambda: workload.loss(workload.model))
    started = time.perf_counter()
    compiled = precast.compile(workload.model)
    mine = _gradients(workload.model, lambda: workload.loss(compiled))
    torch.cuda.synchronize()
    first, far, limit = time.perf_counter() - started, _far(mine, exact), 1.3 * _far(eager, exact) + 0.01
    report(case=name, what="gradients", first_s=first, error=far, limit=limit, right=far <= limit)
    for _ in range(6):
        mine = _gradients(workload.model, lambda: workload.loss(compiled))
    report(case=name, what="replayed", error=_far(mine, exact), limit=limit, right=_far(mine, exact) <= limit)
    del exact, eager, mine
    torch.cuda.reset_peak_memory_stats()
    step = training_step(workload, compiled)
    report(case=name, what="precast", ms=median_milliseconds(step, warm=10), **_peaks())
    _profile(step, report, name)


def _watch_graphs(report: Report, name: str) -> None:
    """Tell what each graph is made of that is compiled from now on: kernels, routines, and operators of torch."""
    from precast.native.call import CompiledGraph, NativeStep
    from precast.native.targets.cuda.run import GpuEntry
    from precast.native.targets.cuda.target import CudaTarget

    before = CudaTarget.repeated

    def repeated(self: CudaTarget, graph: CompiledGraph) -> Any:
        counts: Counter[str] = Counter()
        for step in graph.steps:
            if not isinstance(step, NativeStep):
                counts.update(f"torch: {call.function}" for call in step.calls)
            elif isinstance(step.entry, GpuEntry):
                counts.update(type(each).__name__ for each in step.entry.program.steps)
                counts.update(f"back: {each.operator}" for each in step.entry.fallbacks)
        found = before(self, graph)
        report(case=name, what="graph", steps=dict(counts.most_common(30)), may_be_recorded=found is not None)
        return found

    CudaTarget.repeated = repeated  # type: ignore[method-assign]


def _gradients(model: nn.Module, loss: Callable[[], torch.Tensor]) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss().backward()
    found = {key: each.grad.clone() for key, each in model.named_parameters() if each.grad is not None}
    model.zero_grad()
    return found


def _far(mine: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """The mean over parameters of the relative distance."""
    found = [((mine[key] - each).norm() / (each.norm() + 1e-12)).item() for key, each in exact.items()]
    return sum(found) / len(found)


def steps(report: Report) -> None:
    """Other ways in: ``train_step``, ``torch.compile(backend="precast")``, ``aot_function``."""

    def small() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 128), nn.LayerNorm(128), nn.GELU(), nn.Linear(128, 10)).cuda()

    x, y = floats(256, 64), whole(256, low=0, high=10)

    def trained() -> float:
        model, other = small(), small()
        step = precast.train_step(
            model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), torch.optim.AdamW(model.parameters(), lr=1e-2), (x, y)
        )
        optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
        for _ in range(5):
            mine = step((x, y))
            loss = F.cross_entropy(other(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        torch.testing.assert_close(mine, loss, rtol=1e-3, atol=1e-4)
        from benchmarks.gpu.workloads import median_milliseconds

        return median_milliseconds(lambda: step((x, y)))

    def by_torch_compile() -> None:
        from precast.native.torch_compile import compile_graph

        # The function itself: torch finds the name only where the package is installed.
        model = small()
        torch.testing.assert_close(torch.compile(model, backend=compile_graph)(x), model(x), rtol=1e-3, atol=1e-4)

    def overhead() -> float:
        function = precast.compile(lambda *tensors: sum(tensors))
        tensors = [torch.ones(64, device="cuda") for _ in range(10)]
        with torch.no_grad():
            for _ in range(20):
                function(*tensors)
            torch.cuda.synchronize()
            started = time.perf_counter()
            for _ in range(1000):
                function(*tensors)
            spent = (time.perf_counter() - started) * 1e3
        torch.cuda.synchronize()
        return spent

    def five_steps_of_a_transformer() -> None:
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        model = nn.Sequential(nn.Embedding(50, 64), layer, nn.Linear(64, 50)).cuda()
        other = copy.deepcopy(model)
        compiled = precast.compile(model)
        tokens = whole(8, 32, low=0, high=50)
        for each, call in ((model, compiled), (other, other)):
            optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
            for _ in range(5):
                F.cross_entropy(call(tokens).flatten(0, 1), tokens.flatten()).backward()
                optimizer.step()
                optimizer.zero_grad()
        for a, b in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-3)

    def attention() -> dict[str, str]:
        """Which kernel torch chooses for attention with a mask, and why not the others."""
        query = floats(16, 12, 512, 64).bfloat16().requires_grad_()
        mask = torch.ones(16, 1, 1, 512, dtype=torch.bool, device="cuda").expand(16, 1, 512, 512)
        found = {}
        for what, each in (("none", None), ("bool", mask), ("bfloat16", torch.zeros_like(mask, dtype=query.dtype))):
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                params = torch.backends.cuda.SDPAParams(query, query, query, each, 0.0, False, False)
                torch.backends.cuda.can_use_efficient_attention(params, debug=True)
                torch.backends.cuda.can_use_cudnn_attention(params, debug=True)
            choice = torch._fused_sdp_choice(query, query, query, each)
            found[what] = f"{choice}: " + "; ".join(str(each.message)[:200] for each in told)
        return found

    for check in (attention, trained, by_torch_compile, overhead, five_steps_of_a_transformer):
        try:
            report(case=check.__name__, right=True, found=check())
        except Exception:  # noqa: BLE001
            report(case=check.__name__, right=False, problem=traceback.format_exc(limit=-10)[-3000:])


def _peaks() -> dict[str, int]:
    """In MB: what was used at most, and what was asked of the device."""
    return {"peak": torch.cuda.max_memory_allocated() >> 20, "reserved": torch.cuda.max_memory_reserved() >> 20}


def _profile(step: Callable[[], object], report: Report, name: str) -> None:
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    ) as found:
        for _ in range(2):
            step()
        torch.cuda.synchronize()
    rows = sorted(found.key_averages(), key=lambda each: -each.self_device_time_total)[:40]
    told = [[each.key[:90], each.count // 2, round(each.self_device_time_total / 2000, 3)] for each in rows
            if each.self_device_time_total]  # fmt: skip
    report(case=name, what="profile", rows=told)


PARTS: dict[str, Callable[..., None]] = {
    "kernels": kernels, "operators": operators, "graphs": graphs, "models": models, "steps": steps,
    "packages": packages,
}  # fmt: skip


def main() -> None:
    name, out, *arguments = sys.argv[1:]
    warnings.simplefilter("ignore")
    path = Path(out) / f"{name}.jsonl"

    def report(**found: Any) -> None:
        with path.open("a") as file:
            file.write(json.dumps(found) + "\n")
        if not found.get("right") or name == "models":
            print(
                json.dumps({key: value for key, value in found.items() if key not in ("trace", "rows")})[:700],
                flush=True,
            )

    try:
        PARTS[name](report, *arguments)
    except Exception:  # told, and then the process ends as it would
        report(case=" ".join(arguments), right=False, problem=traceback.format_exc(limit=-12)[-4000:])
        raise


if __name__ == "__main__":
    main()
