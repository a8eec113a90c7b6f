"""A process that is killed while it writes checkpoints or packages of a step leaves whole ones."""

import os
import random
import signal
import time
import traceback
from itertools import count

import pytest
import torch

import precast
import precast.runtime
from tests.training.like_eager import batches

SEEDS = 20


def made():
    model = torch.nn.Linear(4, 300)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loss_fn = lambda model, x: model(x).square().mean()  # noqa: E731
    step = precast.train_step(model, loss_fn, optimizer, batches(1)[0], backend="nop", entries=("train",))
    step(batches(1)[0])
    return step


def fill(step, number):
    """State of which one part tells all others."""
    with torch.no_grad():
        for tensor in [*step.model.parameters(), *(v for s in step.optimizer.state.values() for v in s.values())]:
            tensor.fill_(number)


def write_for_ever(step, write, first):
    for number in count(first):
        fill(step, number)
        write()


def kill_a_writer(step, write, first, folder, after):
    """Fork a writer, and kill it so many seconds after it began to write a file, whatever it is doing."""
    before = os.listdir(folder)
    writer = os.fork()
    if writer == 0:
        try:
            write_for_ever(step, write, first)
        finally:
            traceback.print_exc()
            os._exit(1)
    while os.listdir(folder) == before:
        time.sleep(0.0005)
    time.sleep(after)
    os.kill(writer, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(writer, 0)[1]) == -signal.SIGKILL


def number_of(values):
    """What all of them were filled with."""
    assert len(values) == 8
    (number,) = {each for value in values for each in value.reshape(-1).tolist()}
    return number


def kills(step, folder, seconds, write):
    """Kills at moments that are spread over several times of writing."""
    fill(step, 0)
    write()
    moments = random.Random(0)
    for seed in range(SEEDS):
        kill_a_writer(step, write, 1000 * (seed + 1), folder, moments.uniform(0, seconds))
        yield


def test_killed_writers_leave_whole_checkpoints(tmp_path):
    step, other, found = made(), made(), set()
    for _ in kills(step, tmp_path, 0.05, lambda: step.save_checkpoint(tmp_path)):
        fill(other, -1)
        other.load_checkpoint(tmp_path)
        state = [value for each in other.optimizer.state.values() for value in each.values()]
        found.add(number_of([*other.model.parameters(), *state]))
    assert len(found) > 2
    step.save_checkpoint(tmp_path)
    assert sorted(each.partition("-")[0] for each in os.listdir(tmp_path)) == ["checkpoint", "index.json"]


@pytest.mark.slow
def test_killed_writers_leave_whole_packages(tmp_path):
    step, path, found = made(), tmp_path / "model.precast", set()
    for _ in kills(step, tmp_path, 0.03, lambda: step.save(path)):
        state = precast.runtime.load(path).state
        kept_state = [value for name, value in state.items() if name.startswith(("model.", "optimizer.state."))]
        found.add(number_of(kept_state))
        assert all(each == path.name or each.startswith(".") for each in os.listdir(tmp_path))
    assert len(found) > 2
