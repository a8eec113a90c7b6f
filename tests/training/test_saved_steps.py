"""A saved step trains without torch as it does in process: the same numbers, flat memory, nothing lost by an error."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.errors import InputValueError
from tests.training.like_eager import Network, batches, loss_of


def made(**settings):
    model = Network(dropout=0.2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    torch.manual_seed(3)
    return precast.train_step(model, loss_of, optimizer, batches(1)[0], grad_clip=1.0, **settings)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    step = made(skip_nonfinite=True)
    step(batches(1)[0])
    return step, step.save(tmp_path_factory.mktemp("training") / "model.precast")


def test_training_without_torch_is_that_in_process(saved):
    step, path = saved
    model = precast.runtime.load(path)
    assert model.entries == ("train_step", "eval")
    for number, batch in enumerate(batches(30)):
        step.optimizer.param_groups[0]["lr"] = rate = 1e-2 / (number + 1)
        model.state["optimizer.groups.0.lr"] = np.array(rate)
        assert float(step(batch)) == float(model["train_step"](batch.numpy()))
    for name, tensor in step.model.state_dict().items():
        np.testing.assert_array_equal(model.state[f"model.{name}"], tensor.numpy(), err_msg=name)
    for name, parameter in step.model.named_parameters():
        for key, value in step.optimizer.state[parameter].items():
            np.testing.assert_array_equal(model.state[f"optimizer.state.{name}.{key}"], value.numpy(), err_msg=name)


def test_evaluation_is_in_eval_mode_and_changes_nothing(saved):
    step, path = saved
    model = precast.runtime.load(path)
    fresh = Network(dropout=0.2).eval()
    fresh.load_state_dict({k[6:]: torch.from_numpy(v) for k, v in model.state.items() if k.startswith("model.")})
    before = {name: value.copy() for name, value in model.state.items()}
    batch = batches(1)[0]
    np.testing.assert_allclose(float(model["eval"](batch)), loss_of(fresh, batch).item(), rtol=1e-5)
    assert all(np.array_equal(model.state[name], value) for name, value in before.items())
    assert step.model.training


def test_a_bad_batch_leaves_the_state_as_it_was(saved):
    model = precast.runtime.load(saved[1])
    before = {name: value.copy() for name, value in model.state.items()}
    with pytest.raises(InputValueError, match=r"batch.shape\[1\] is 5"):
        model["train_step"](np.zeros((8, 5), np.float32))
    assert not np.isfinite(model["train_step"](np.full((8, 4), np.nan, np.float32)))
    changed = [name for name, value in before.items() if not np.array_equal(model.state[name], value)]
    assert sorted(changed) == ["optimizer.skipped", "random.seed"]


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
import json, resource
import numpy as np, precast.runtime
model = precast.runtime.load(sys.argv[1])
batch = np.random.default_rng(0).standard_normal((8, 4), np.float32)
first = float(model["train_step"](batch))
for _ in range(200):
    model["train_step"](batch)
early = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for _ in range(1000):
    last = float(model["train_step"](batch))
print(json.dumps([first, last, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - early]))
"""


def test_a_thousand_steps_without_torch_take_no_more_memory(saved):
    done = subprocess.run([sys.executable, "-c", WITHOUT_TORCH, saved[1]], capture_output=True, text=True, check=True)
    first, last, growth = json.loads(done.stdout)
    assert last < first
    assert growth <= 128


def test_state_goes_out_and_in_as_safetensors(saved, tmp_path):
    trained, other = precast.runtime.load(saved[1]), precast.runtime.load(saved[1])
    for batch in batches(3):
        trained["train_step"](batch.numpy())
    trained.state.save(tmp_path / "state.safetensors")
    other.state.load(tmp_path / "state.safetensors")
    assert list(trained.state) == list(other.state)
    assert all(np.array_equal(trained.state[name], other.state[name]) for name in trained.state)
    batch = batches(1)[0].numpy()
    assert trained["train_step"](batch) == other["train_step"](batch)
    from safetensors.numpy import load_file

    assert load_file(tmp_path / "state.safetensors").keys() == set(trained.state)


def test_without_native_code_torch_interprets_the_step(tmp_path):
    model = Network()
    step = precast.train_step(model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1), batches(1)[0], backend="nop")
    path = step.save(tmp_path / "model.precast")
    native, interpreted = precast.runtime.load(path), precast.runtime.load(path, allow_native=False)
    for batch in batches(3):
        np.testing.assert_allclose(native["train_step"](batch.numpy()), interpreted["train_step"](batch.numpy()), 1e-5)
    for name in native.state:
        np.testing.assert_allclose(native.state[name], interpreted.state[name], rtol=1e-4, atol=1e-5)
