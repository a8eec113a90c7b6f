"""One seed gives the same random numbers in process and in a package that runs without torch."""

import os
import subprocess
import sys

import numpy as np
import torch

import precast
from precast.ops.own_operators import random_seed

_RUN = """
import sys
sys.modules["torch"] = None
import numpy as np
import precast.runtime

model = precast.runtime.load(sys.argv[1])
model.state["random.seed"] = np.array(int(sys.argv[2]))
np.save(sys.argv[3], model(np.ones((64, 8), np.float32)))
"""


def noisy(x):
    return torch.nn.functional.dropout(x, 0.5) * torch.rand_like(x) + torch.randn(8)


def test_a_seed_gives_the_same_numbers_with_and_without_torch(tmp_path):
    x = torch.ones(64, 8)
    torch.manual_seed(7)
    seed = int(random_seed())
    torch.manual_seed(7)
    in_process = precast.compile(noisy)(x)
    path = precast.package(noisy, (x,), path=tmp_path / "noisy.precast", samples=False)
    command = [sys.executable, "-c", _RUN, str(path), str(seed), str(tmp_path / "drawn.npy")]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "2"})
    assert torch.equal(torch.from_numpy(np.load(tmp_path / "drawn.npy")), in_process)
