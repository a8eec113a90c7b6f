"""Batch norms with ``momentum=None`` count batches with tensors: compiled and exported, they train as in eager."""

import copy

import pytest
import torch

import precast

BATCHES = [torch.randn(2, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) + seed for seed in range(3)]


def norm(**options):
    return torch.nn.BatchNorm2d(3, momentum=None, **options).double()


def trained(run, module):
    """What three calls give, and the state they leave."""
    results = [run(batch.double()) for batch in BATCHES]
    return results, dict(module.state_dict())


@pytest.mark.parametrize("backend", ["interpret", "native"])
def test_running_statistics_are_averages_of_all_batches(backend):
    eager = norm()
    module = copy.deepcopy(eager)
    assert_same = torch.testing.assert_close
    assert_same(trained(precast.compile(module, backend=backend), module), trained(eager, eager))
    assert module.num_batches_tracked == 3


def test_aot_modules_count_too():
    eager = norm(affine=False)
    module = copy.deepcopy(eager)
    compiled = precast.aot_module(module, fw_compiler=precast.compilers.nop)
    torch.testing.assert_close(trained(compiled, module), trained(eager, eager))


def test_exported_programs_return_the_new_averages():
    eager = norm()
    exported = precast.export(copy.deepcopy(eager), (BATCHES[0].double(),)).module()
    torch.testing.assert_close(exported(BATCHES[1].double()), eager(BATCHES[1].double()))
    torch.testing.assert_close(dict(exported.named_buffers()), dict(eager.named_buffers()))


def test_in_evaluation_nothing_is_counted():
    module = norm().eval()
    compiled = precast.compile(module, backend="interpret")
    torch.testing.assert_close(compiled(BATCHES[0].double()), module(BATCHES[0].double()))
    assert module.num_batches_tracked == 0


@pytest.mark.parametrize("momenta", [(None, 0.5, None), (0.1, None, 0.5), (None, None, 0.1)])
def test_a_momentum_that_changes_is_seen(momenta):
    eager = norm()
    module = copy.deepcopy(eager)
    compiled = precast.compile(module, backend="nop")
    for momentum, batch in zip(momenta, BATCHES, strict=True):
        eager.momentum = module.momentum = momentum
        torch.testing.assert_close(compiled(batch.double()), eager(batch.double()))
        torch.testing.assert_close(dict(module.named_buffers()), dict(eager.named_buffers()))
