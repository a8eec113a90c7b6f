"""Every architecture of transformers and of timm, in every mode: equal to eager, or refused with a reason."""

import functools
import os
import time
from typing import Any

import pytest
import torch

import precast
from tests.models import judging
from tests.models.architecture_page import page_of
from tests.models.architectures import architecture_names, make_architecture
from tests.models.examples import Example, NotJudgedError
from tests.models.judging import MODES, Verdict, judge
from tests.models.shrinking import shrunk
from tests.models.sweep import LIMIT_SECONDS, judge_in_child
from tests.models.timm_models import INSTALLED, SMALLEST, load_timm

needs_timm = pytest.mark.skipif(not INSTALLED, reason="timm is not installed: run `make timm`")
NAMES = [pytest.param(name, marks=[needs_timm] if name.startswith("timm/") else []) for name in architecture_names()]


@pytest.mark.models
@pytest.mark.timeout(LIMIT_SECONDS + 60)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", NAMES)
def test_equal_or_refused(name: str, mode: str):
    verdict = judge_in_child(functools.partial(make_architecture, name), mode)
    if verdict.status == "not judged":
        pytest.skip(verdict.reason)
    assert verdict.status in ("equal", "with constants", "refused"), verdict


@pytest.mark.models
@needs_timm
def test_every_family_of_timm_has_a_model():
    assert sorted(SMALLEST) == sorted(load_timm().list_modules())


class Doubling(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


class Deciding(Doubling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.sum() > 0 else x


class Dying(Doubling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            os.abort()
        return super().forward(x)


class Waiting(Doubling):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            time.sleep(600)
        return super().forward(x)


def example(module_class: type[Doubling]) -> Example:
    return Example(module_class(), {"x": torch.ones(2, 3)})


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_is_compiled_rightly_is_equal(mode: str):
    assert judge(functools.partial(example, Doubling), mode).status == "equal"


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_decides_on_values_runs_in_pieces_or_forks(mode: str):
    verdict = judge(functools.partial(example, Deciding), mode)
    in_pieces = mode in ("forward", "training")
    assert verdict.status == ("in pieces" if in_pieces else "equal")
    assert ("x.sum() > 0" in verdict.reason) == in_pieces


@pytest.mark.parametrize("mode", ["forward", "training"])
def test_a_wrong_number_is_seen(mode: str, monkeypatch: pytest.MonkeyPatch):
    class Off(torch.nn.Module):
        def __init__(self, module: torch.nn.Module, **_: Any) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x) * 1.01

    monkeypatch.setattr(precast, "compile", Off)
    verdict = judge(functools.partial(example, Doubling), mode)
    assert (verdict.status, verdict.reason) == ("wrong", "outputs[0]: 0.02 off, of at most 2")


def test_a_crash_and_a_hang_are_verdicts():
    assert judge_in_child(functools.partial(example, Dying), "forward").status == "crashed"
    assert judge_in_child(functools.partial(example, Waiting), "forward", limit_seconds=20).status == "slow"


def test_what_eager_does_not_run_is_not_judged():
    def broken() -> Example:
        raise NotJudgedError("no such size")

    assert judge(broken, "forward") == Verdict("not judged", "no such size")


def test_numbers_as_precise_as_eagers_are_not_wrong():
    exact = torch.tensor([1.0, 1e-9], dtype=torch.float64)
    eager, ours, off = torch.tensor([1.0, 3e-6]), torch.tensor([1.0, -2e-6]), torch.tensor([1.0, 1e-3])
    assert judging._is_as_precise([ours], [eager], [exact])
    assert not judging._is_as_precise([off], [eager], [exact])


def test_one_layer_of_each_kind_is_kept():
    from transformers import Qwen3NextConfig

    config = shrunk(Qwen3NextConfig)
    assert (config.hidden_size, config.num_attention_heads, config.vocab_size) == (32, 4, 99)
    assert config.layer_types == ["linear_attention", "full_attention"]


def test_the_page_tells_totals_and_reasons():
    results = {
        ("timm/a", "forward"): Verdict("equal"),
        ("timm/a", "training"): Verdict("refused", "it decides at: /a/site-packages/timm/a.py:3 fix: do not"),
        ("timm/b", "forward"): Verdict("not judged", "no image is so small"),
    }
    page = page_of(results, ["timm/a", "timm/b"])
    assert "| timm | training | 0 | 0 | 0 | 1 | 0 | 0 | 0 | 0 | 1 | 0 |" in page
    assert "- `timm/a`, training: *refused*: it decides at: timm/a.py:3\n" in page
    assert "| timm/a | ✓ | refused |  |  |" in page
    assert "- `timm/b`: no image is so small" in page
