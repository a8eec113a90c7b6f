"""What was packaged with torch runs without it: where torch cannot be imported, and where it is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel

import precast

ROOT = Path(__file__).parents[2]
RUN = """
import sys
if sys.argv[1] == "hide":
    sys.modules["torch"] = None
import numpy as np
import precast.runtime

folder = sys.argv[2]
ids = np.load(f"{folder}/ids.npy")
model = precast.runtime.load(f"{folder}/bert.precast")
assert all(check.passed for check in model.verify())
bert = model(input_ids=ids, attention_mask=np.ones_like(ids))

x = np.load(f"{folder}/x.npy")
training = precast.runtime.load(f"{folder}/training.precast")
losses = [training["train_step"](x, x[:, :2]) for _ in range(50)]
assert losses[-1] < losses[0], losses
assert training.state["random.seed"] == 50
library = precast.aot_load(f"{folder}/library.so", "cpu")
np.savez(f"{folder}/out.npz", bert.last_hidden_state, bert["pooler_output"], library(x)["y"])
try:
    precast.runtime.load(f"{folder}/bert.precast", allow_native=False)
except precast.PrecastError as problem:
    assert "torch" in str(problem)
else:
    raise AssertionError("nothing can be interpreted here")
assert not any(name.startswith("torch") and module is not None for name, module in sys.modules.items())
"""


class Step(torch.nn.Module):
    """Gradient descent on one layer behind a dropout."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(2, 4), requires_grad=False)

    def forward(self, x, y):
        kept = torch.nn.functional.dropout(x, 0.1, training=True)
        error = kept @ self.weight.t() - y
        self.weight.sub_(0.2 * error.t() @ kept / x.shape[0])
        return (error**2).mean()


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=50)
    return BertModel(config).eval()


@pytest.fixture(scope="module")
def folder(bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("without-torch")
    ids, x = torch.randint(0, 50, (3, 9)), torch.randn(16, 4)
    np.save(folder / "ids.npy", ids)
    np.save(folder / "x.npy", x)
    example = ids[:2, :5].contiguous()
    size = {0: precast.Dim("batch", max=16), 1: precast.Dim("length", min=2, max=64)}
    precast.package(
        bert,
        kwargs={"input_ids": example, "attention_mask": torch.ones_like(example)},
        path=folder / "bert.precast",
        dynamic_shapes={"input_ids": size, "attention_mask": size},
    )
    precast.package({"train_step": (Step(), (x, x[:, :2]))}, path=folder / "training.precast")
    precast.aot_compile(lambda x: {"y": x.softmax(0)}, (x,), options={"output_path": folder / "library.so"})
    return folder


def run(python, mode, folder, bert):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run([python, "-c", RUN, mode, folder], check=True, env={**environment, "OMP_NUM_THREADS": "1"})
    ids = torch.as_tensor(np.load(folder / "ids.npy"))
    with torch.no_grad():
        expected = bert(input_ids=ids, attention_mask=torch.ones_like(ids))
    with np.load(folder / "out.npz") as results:
        first, second, third = (results[name] for name in results.files)
    np.testing.assert_allclose(first, expected.last_hidden_state, atol=2e-6)
    np.testing.assert_allclose(second, expected.pooler_output, atol=2e-6)
    np.testing.assert_allclose(third, torch.as_tensor(np.load(folder / "x.npy")).softmax(0), atol=1e-6)


def test_artifacts_run_where_torch_cannot_be_imported(folder, bert):
    run(sys.executable, "hide", folder, bert)


@pytest.mark.slow
def test_artifacts_run_where_torch_is_not_installed(folder, bert, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", ROOT], check=True)
    listed = subprocess.run([python, "-m", "pip", "list"], check=True, capture_output=True, text=True).stdout
    assert "onednn" in listed
    assert "torch" not in listed
    run(python, "bare", folder, bert)
