"""The examples of training run, learn, and go on from each other's state."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples" / "train"


def losses(name, *arguments):
    done = subprocess.run([sys.executable, EXAMPLES / name, *arguments], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return [float(loss) for loss in re.findall(r"loss (\S+?),?\s", done.stdout)], done.stdout


@pytest.mark.slow
def test_a_small_gpt_is_trained_by_torch_then_without_then_from_c():
    found, _ = losses("gpt.py", "--steps", "50")
    assert len(found) == 6
    assert found[0] > 4.5
    assert all(loss < 2.8 for loss in found[1:])
    assert found[-1] < found[1]


@pytest.mark.slow
def test_frozen_layers_stay():
    found, text = losses("fine_tune.py", "--steps", "50")
    assert found[-1] < 0.2
    assert text.rstrip().endswith("none outside of: head last")


@pytest.mark.slow
def test_low_rank_additions_learn():
    found, _ = losses("lora.py", "--steps", "50")
    assert found[-1] < found[2] - 0.3
