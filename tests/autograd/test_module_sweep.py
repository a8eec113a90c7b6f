"""Torch's own module database, compiled: outputs, buffers and gradients are eager's, in train and eval mode."""

import copy

import pytest
import torch
from torch.nn.modules.lazy import LazyModuleMixin
from torch.testing._internal.common_modules import ModuleInput, module_db
from torch.utils import _pytree as pytree

from precast.autograd import aot_module
from precast.compilers import nop
from precast.errors import DataDependentError

pytestmark = pytest.mark.filterwarnings("ignore")
MODULES = {info.name: info for info in module_db}
# What is not like eager, and why. May only shrink: an entry that works fails its test.
GAPS: dict[str, str] = {
    "nn.GaussianNLLLoss": "checks in Python that no variance is negative",
    "nn.CTCLoss": "the size of its result depends on the values of the target lengths; no fake kernel in torch",
}
ALL = [name for name in MODULES if name not in GAPS]
MODES = pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])


def assert_like_eager(name: str, dtype: torch.dtype, *, training: bool, count: int) -> None:
    samples = [sample for sample in samples_of(name, dtype, training=training) if not decides_by_values(name, sample)]
    for sample in samples[:: max(1, -(-len(samples) // count))]:
        _compare(MODULES[name].module_cls, sample, dtype, training=training)


def samples_of(name: str, dtype: torch.dtype, *, training: bool) -> list[ModuleInput]:
    torch.manual_seed(0)
    info = MODULES[name]
    return list(info.module_inputs_func(info, "cpu", dtype, requires_grad=True, training=training))


def decides_by_values(name: str, sample: ModuleInput) -> bool:
    """Calls that read values in Python: a mask to compare with a causal one."""
    masks = [sample.forward_input.kwargs.get(key) for key in ("mask", "src_mask", "tgt_mask")]
    return name.startswith("nn.Transformer") and any(mask is not None for mask in masks)


def _compare(kind: type[torch.nn.Module], sample: ModuleInput, dtype: torch.dtype, *, training: bool) -> None:
    torch.manual_seed(0)
    module = kind(*sample.constructor_input.args, **sample.constructor_input.kwargs).to(dtype).train(training)
    if isinstance(module, LazyModuleMixin):
        # Its parameters have no sizes before the first call.
        _Run(module, sample)
    ours = _Run(aot_module(copy.deepcopy(module), nop), sample)
    eager = _Run(module, sample)
    assert len(ours.outputs) == len(eager.outputs)
    for our, their in zip(ours.everything, eager.everything, strict=True):
        assert (our is None) == (their is None)
        if our is not None:
            torch.testing.assert_close(our, their, rtol=0.0, atol=0.0, equal_nan=True)


class _Run:
    """One run on copies of a sample: outputs, buffers, and gradients of inputs and parameters."""

    def __init__(self, module: torch.nn.Module, sample: ModuleInput) -> None:
        call = sample.forward_input.args, sample.forward_input.kwargs
        args, kwargs = pytree.tree_map_only(torch.Tensor, _copy, call)
        torch.manual_seed(1)
        result = module(*args, **kwargs)
        inputs = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.outputs = [output for output in pytree.tree_leaves(result) if isinstance(output, torch.Tensor)]
        wanted = [value for value in (*inputs, *module.parameters()) if value.requires_grad]
        sources = [output for output in self.outputs if output.requires_grad]
        torch.manual_seed(2)
        tangents = [torch.rand_like(source) for source in sources]
        gradients = torch.autograd.grad(sources, wanted, tangents, allow_unused=True) if sources else ()
        self.everything = [*self.outputs, *module.buffers(), *gradients]


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


@MODES
@pytest.mark.parametrize("name", ALL[::5])
def test_one_sample(name: str, training: bool):
    assert_like_eager(name, torch.float32, training=training, count=1)


@pytest.mark.slow
@MODES
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", ALL)
def test_samples(name: str, dtype: torch.dtype, training: bool):
    if dtype in MODULES[name].dtypes:
        assert_like_eager(name, dtype, training=training, count=6)


@pytest.mark.slow
@pytest.mark.parametrize("name", GAPS)
def test_gap_is_still_there(name: str):
    with pytest.raises((RuntimeError, AssertionError)):
        assert_like_eager(name, torch.float32, training=True, count=6)


def test_decisions_by_values_still_cannot_be_compiled():
    name = "nn.TransformerEncoder"
    samples = samples_of(name, torch.float32, training=True)
    sample = next(sample for sample in samples if decides_by_values(name, sample))
    with pytest.raises(DataDependentError):
        _compare(MODULES[name].module_cls, sample, torch.float32, training=True)
