"""All of torch's optimizers with all settings that torch itself tests them with."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_optimizers import (
    _get_optim_inputs_including_global_cliquey_kwargs,
    optim_db,
)

# They decide on data, and are refused by name: see test_optimizers.
_OWN_WAY = {"LBFGS", "SparseAdam"}
# Its products are of bfloat16; `test_muon_is_as_near_to_float64_as_eagers` judges it.
_COARSE = {"Muon": 1e-2}


@dataclass(frozen=True)
class Setting:
    """One optimizer as it is made."""

    kind: type[torch.optim.Optimizer]
    options: dict[str, Any]

    def __str__(self) -> str:
        told = [f"{name}={value}" for name, value in self.options.items() if value is not False]
        return "-".join([self.kind.__name__, *told])

    @property
    def tolerance(self) -> float:
        return _COARSE.get(self.kind.__name__, 2e-6)

    def parameters(self) -> list[torch.nn.Parameter]:
        generator = torch.Generator().manual_seed(0)
        sizes = [(4, 3), (3, 3)] if self.kind.__name__ == "Muon" else [(4, 3), (5,), ()]
        return [torch.nn.Parameter(torch.randn(size, generator=generator)) for size in sizes]

    def make(self, parameters: list[Any]) -> torch.optim.Optimizer:
        own = {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in self.options.items()}
        return self.kind(parameters, **own)


def settings() -> Iterator[Setting]:
    """Every optimizer with every setting, single-tensor, foreach and fused."""
    for info in optim_db:
        if info.optim_cls.__name__ in _OWN_WAY:
            continue
        for each in _get_optim_inputs_including_global_cliquey_kwargs("cpu", torch.float32, info):
            # With parameters that are leaves, a differentiable step is an error.
            if not each.kwargs.get("differentiable"):
                yield Setting(info.optim_cls, each.kwargs)
        if "foreach" in info.supported_impls:
            for each in info.optim_inputs_func("cpu"):
                yield Setting(info.optim_cls, {**each.kwargs, "foreach": True})


def quick_settings() -> Iterator[Setting]:
    """The richest setting of every optimizer in each form."""
    richest: dict[tuple[Any, ...], Setting] = {}
    for setting in settings():
        form = (setting.kind, setting.options.get("foreach", False), setting.options.get("fused", False))
        if form not in richest or len(setting.options) > len(richest[form].options):
            richest[form] = setting
    yield from richest.values()


def assert_same_steps(setting: Setting, compile: Callable[[Any], Any], steps: int) -> Any:
    """Step two equal optimizers, one of them compiled, and compare all that there is; gives the compiled step."""
    eager, own = setting.parameters(), setting.parameters()
    eager_optimizer, optimizer = setting.make(eager), setting.make(own)
    step = compile(optimizer.step)
    for seed in range(steps):
        give_gradients(eager, seed)
        give_gradients(own, seed)
        kept = [parameter.grad for parameter in own]
        eager_optimizer.step()
        step()
        assert all(parameter.grad is gradient for parameter, gradient in zip(own, kept, strict=True))
        assert_same_tensors(eager, own, setting.tolerance)
    assert_same_tensors([p.grad for p in eager], [p.grad for p in own], 0.0)
    assert_same_state(eager_optimizer, eager, optimizer, own, setting.tolerance)
    return step


def give_gradients(parameters: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=generator)


def assert_same_tensors(expected: list[Any], found: list[Any], tolerance: float) -> None:
    for left, right in zip(expected, found, strict=True):
        torch.testing.assert_close(right, left, rtol=tolerance, atol=tolerance)


def assert_same_state(
    eager_optimizer: torch.optim.Optimizer,
    eager: list[Any],
    optimizer: torch.optim.Optimizer,
    own: list[Any],
    tolerance: float,
) -> None:
    """Whether two optimizers hold the same for parameters of the same number."""
    assert len(eager_optimizer.state) == len(optimizer.state)
    for left, right in zip(eager, own, strict=True):
        expected, found = eager_optimizer.state[left], optimizer.state[right]
        assert list(expected) == list(found)
        for name, value in expected.items():
            assert type(found[name]) is type(value), name
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(found[name], value, rtol=10 * tolerance, atol=tolerance)
            else:
                assert found[name] == value, name
