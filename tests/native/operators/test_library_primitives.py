"""What oneDNN is asked to do, by its own log: primitives are made once a shape, constants are packed once."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import torch, precast

layer = torch.nn.Sequential(torch.nn.Linear(96, 64), torch.nn.ReLU(), torch.nn.Linear(64, 96)).eval()
compiled = precast.compile(layer, dynamic=False, options={"freeze": FREEZE})
with torch.no_grad():
    for _ in range(3):
        compiled(torch.randn(600, 96))
        print("called", flush=True)
"""


def log_of_calls(folder: Path, *, freeze: bool) -> list[list[str]]:
    """The lines that oneDNN writes during each of three calls."""
    environment = os.environ | {"ONEDNN_VERBOSE": "2", "PRECAST_CACHE_DIR": str(folder), "OMP_NUM_THREADS": "1"}
    program = PROGRAM.replace("FREEZE", str(freeze))
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    calls: list[list[str]] = [[]]
    for line in run.stdout.splitlines():
        if line == "called":
            calls.append([])
        elif "verbose" in line and ",info," not in line:
            calls[-1].append(line)
    return calls[:-1]


def count(lines: list[str], *words: str) -> int:
    return sum(all(word in line for word in words) for line in lines)


def test_primitives_are_made_in_the_first_call_only(tmp_path: Path) -> None:
    first, *later = log_of_calls(tmp_path, freeze=False)
    assert count(first, "create", "matmul") == 2
    assert [count(call, "create") for call in later] == [0, 0]
    assert [count(call, "exec", "matmul") for call in (first, *later)] == [2, 2, 2]


def test_constant_weights_are_packed_in_the_first_call_only(tmp_path: Path) -> None:
    first, *later = log_of_calls(tmp_path, freeze=True)
    assert count(first, "exec", "reorder") == 2
    assert [count(call, "exec", "reorder") for call in later] == [0, 0]
