"""Train, be interrupted, resume: ``python examples/train/resume.py``.

A run of 40 steps is compared with one that is stopped after 20 and goes on in a new process. Both end with the same
parameters, to the last bit, dropout and learning rate schedule included.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import precast

STEPS, HALF = 40, 20


def make() -> tuple[precast.TrainStep, torch.optim.lr_scheduler.LRScheduler]:
    """The same model, optimizer and schedule in every process."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    step = precast.train_step(
        model, lambda model, batch: torch.nn.functional.mse_loss(model(batch["x"]), batch["y"]), optimizer, batch_of(0)
    )
    return step, schedule


def batch_of(number: int) -> dict[str, torch.Tensor]:
    """The batch of a step depends on its number alone, so that a resumed run sees the same data."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(32, 8, generator=generator)
    return {"x": x, "y": x.sum(1, keepdim=True).sin()}


def train(until: int, checkpoint: Path, *, resume: bool = False) -> float:
    step, schedule = make()
    first = 0
    if resume:
        saved = torch.load(checkpoint)
        step.load_state_dict(saved["step"])
        schedule.load_state_dict(saved["schedule"])
        first = saved["number"]
    for number in range(first, until):
        loss = step(batch_of(number))
        schedule.step()
    # Written under another name first: whoever is killed while writing keeps the checkpoint before.
    partial = checkpoint.with_suffix(".partial")
    torch.save({"step": step.state_dict(), "schedule": schedule.state_dict(), "number": until}, partial)
    partial.replace(checkpoint)
    return float(loss)


def parameters(checkpoint: Path) -> torch.Tensor:
    model = torch.load(checkpoint)["step"]["model"]
    return torch.cat([value.flatten() for value in model.values()])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        whole, parts = Path(folder) / "whole.pt", Path(folder) / "parts.pt"
        print(f"{STEPS} steps at once:     loss {train(STEPS, whole):.6f}")
        print(f"{HALF} steps, then stop:   loss {train(HALF, parts):.6f}")
        subprocess.run([sys.executable, __file__, str(parts)], check=True)
        assert torch.equal(parameters(whole), parameters(parts)), "a resumed run ends elsewhere"
        print("the same parameters, to the last bit")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        print(f"resumed, to step {STEPS}:  loss {train(STEPS, Path(sys.argv[1]), resume=True):.6f}")
    else:
        main()
