"""``precast train``: batches from files, checkpoints, going on, stopping, errors that name the batch."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import precast
import precast.runtime
from precast import cli
from precast.errors import TrainingError
from precast.runtime.train_loop import CHECKPOINT, load_checkpoint

ROWS = 6


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    batch = {"x": torch.zeros(ROWS, 4), "y": torch.zeros(ROWS, 1)}
    loss_fn = lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean()  # noqa: E731
    precast.train_step(model, loss_fn, optimizer, batch, backend="nop").save(folder / "model.precast")
    x = np.random.default_rng(0).standard_normal((7, ROWS, 4), np.float32)
    np.savez(folder / "batches.npz", y=x.sum(2, keepdims=True), x=x)
    return folder


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return lambda *arguments: CliRunner().invoke(cli.app, ["train", "model.precast", *map(str, arguments)])


def state_in(folder, checkpoint):
    model = precast.runtime.load(folder / "model.precast")
    return load_checkpoint(model, checkpoint), {name: value.copy() for name, value in model.state.items()}


def assert_same_state(one, other):
    assert one[0] == other[0]
    for name, value in one[1].items():
        np.testing.assert_array_equal(value, other[1][name], err_msg=name)


def test_training_ends_with_state_log_and_curve(run, folder, tmp_path):
    log = tmp_path / "metrics.jsonl"
    result = run("--data", "batches.npz", "--steps", 20, "--checkpoint", tmp_path, "--log", log, "--json")
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    assert facts["steps"] == 20
    assert facts["loss"] < facts["first_loss"]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert lines[-1]["loss"] == facts["loss"]
    assert (tmp_path / "loss.svg").read_text().startswith("<svg")
    model = precast.runtime.load(folder / "model.precast")
    batches = np.load(folder / "batches.npz")
    for number in range(20):
        loss = model["train_step"]({"x": batches["x"][number % 7], "y": batches["y"][number % 7]})
    assert float(loss) == facts["loss"]
    assert_same_state((20, dict(model.state)), state_in(folder, tmp_path))


def test_what_is_resumed_ends_as_if_never_stopped(run, folder, tmp_path):
    straight, parts, log = tmp_path / "straight", tmp_path / "parts", tmp_path / "log.jsonl"
    run("-d", "batches.npz", "-n", 12, "--checkpoint", straight)
    run("-d", "batches.npz", "-n", 5, "--checkpoint", parts, "--log", log)
    with log.open("a") as file:
        file.write('{"step": 6, "loss": 1.0, "seconds": 1}\n{"st')
    result = run("-d", "batches.npz", "-n", 12, "--checkpoint", parts, "--log", log, "--resume")
    assert result.exit_code == 0, result.output
    assert_same_state(state_in(folder, straight), state_in(folder, parts))
    assert [json.loads(line)["step"] for line in log.read_text().splitlines()] == list(range(1, 13))


def test_folders_of_arrays_and_of_batches_are_the_same(run, folder, tmp_path):
    arrays, files = tmp_path / "arrays", tmp_path / "files"
    arrays.mkdir()
    files.mkdir()
    batches = np.load(folder / "batches.npz")
    for name in ("x", "y"):
        np.save(arrays / f"{name}.npy", batches[name])
    for number in range(7):
        np.savez(files / f"{number}.npz", x=batches["x"][number], y=batches["y"][number])
    losses = [json.loads(run("-d", each, "-n", 9, "--json").stdout)["loss"] for each in ("batches.npz", arrays, files)]
    assert len(set(losses)) == 1


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.zeros((3, ROWS, 5), np.float32), "y": np.zeros((3, ROWS, 1), np.float32)}, "batch 0 of bad.npz"),
        ({"x": np.zeros((3, ROWS, 4)), "y": np.zeros((3, ROWS, 1), np.float32)}, "batch 0 of bad.npz"),
        ({"x": np.zeros((3, ROWS, 4), np.float32), "z": np.zeros((3, ROWS, 1), np.float32)}, "holds x, z"),
        ({"x": np.zeros((3, ROWS, 4), np.float32), "y": np.zeros((2, ROWS, 1), np.float32)}, "3 of x and 2 of y"),
        ({"x": np.full((3, ROWS, 4), np.nan, np.float32), "y": np.zeros((3, ROWS, 1), np.float32)}, "x has NaN"),
        ({"x": np.array([None, 1], dtype=object)}, "cannot be read"),
        ({}, "holds nothing"),
    ],
)
def test_bad_batches_are_named(run, tmp_path, arrays, words):
    np.savez(tmp_path / "bad.npz", **arrays)
    result = run("-d", tmp_path / "bad.npz", "-n", 3)
    assert result.exit_code == 1
    assert words in result.output


@pytest.mark.parametrize(
    ("x", "words"),
    [
        (np.ones((ROWS, 3), np.float32), "shape"),
        (np.full((ROWS, 4), np.nan, np.float32), "NaN elements"),
        (np.full((ROWS, 4), np.inf, np.float32), "infinite elements"),
    ],
)
def test_a_bad_batch_in_between_leaves_the_state_of_the_step_before(folder, x, words):
    model = precast.runtime.load(folder / "model.precast")
    good = {"x": np.ones((ROWS, 4), np.float32), "y": np.ones((ROWS, 1), np.float32)}
    bad = {"x": x, "y": np.ones((ROWS, 1), np.float32)}
    with pytest.raises(precast.errors.InputValueError, match=rf"the batch of step 3: .*{words}"):
        precast.runtime.train(model, iter([good, good, bad]), steps=3)
    other = precast.runtime.load(folder / "model.precast")
    precast.runtime.train(other, [good], steps=2)
    assert all(np.array_equal(model.state[name], other.state[name]) for name in model.state)


def test_a_loss_that_is_no_number_ends_training_and_keeps_the_checkpoint(folder, tmp_path):
    model = precast.runtime.load(folder / "model.precast")
    good = {"x": np.ones((ROWS, 4), np.float32), "y": np.ones((ROWS, 1), np.float32)}
    huge = {"x": np.full((ROWS, 4), 1e30, np.float32), "y": np.full((ROWS, 1), -1e30, np.float32)}
    with pytest.raises(TrainingError, match="after step 3"):
        precast.runtime.train(model, [good, good, huge], steps=3, checkpoint=tmp_path, checkpoint_every=2)
    step, state = state_in(folder, tmp_path)
    assert step == 2
    assert all(np.isfinite(value).all() for value in state.values())


def test_learning_rates_are_set(run, folder, tmp_path):
    run("-d", "batches.npz", "-n", 2, "--checkpoint", tmp_path, "--lr", 0.25)
    assert state_in(folder, tmp_path)[1]["optimizer.groups.0.lr"] == 0.25


def test_a_checkpoint_of_another_model_is_refused(run, folder, tmp_path):
    (tmp_path / CHECKPOINT).write_bytes(b"\x00" * 100)
    result = run("-d", "batches.npz", "-n", 2, "--checkpoint", tmp_path, "--resume")
    assert result.exit_code == 3
    assert run("-d", "batches.npz", "-n", 2, "--checkpoint", tmp_path / "none", "--resume").exit_code == 3


def start(folder, tmp_path, steps=1_000_000, every=50):
    command = [
        sys.executable,
        "-m",
        "precast",
        "train",
        "model.precast",
        "--data",
        "batches.npz",
        "--steps",
        str(steps),
    ]
    command += ["--checkpoint", str(tmp_path), "--log", str(tmp_path / "log.jsonl"), "--every", str(every)]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / CHECKPOINT).exists():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return process


def test_control_c_saves(folder, tmp_path):
    process = start(folder, tmp_path)
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stopped" in output
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert state_in(folder, tmp_path)[0] == json.loads(lines[-1])["step"] == len(lines)


def test_a_killed_run_leaves_a_whole_checkpoint(folder, tmp_path):
    process = start(folder, tmp_path, every=1)
    time.sleep(np.random.default_rng().uniform(0, 0.2))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    step, _ = state_in(folder, tmp_path)
    assert step >= 1
    done = precast.runtime.load(folder / "model.precast")
    batches = np.load(folder / "batches.npz")
    data = [{"x": batches["x"][n], "y": batches["y"][n]} for n in range(7)]
    precast.runtime.train(done, data, steps=step)
    assert_same_state((step, dict(done.state)), state_in(folder, tmp_path))


def test_training_does_without_torch(folder, tmp_path):
    code = "import sys; sys.modules['torch'] = None; from precast.cli import main; sys.argv[0] = 'precast'; main()"
    arguments = ["train", "model.precast", "--data", "batches.npz", "--steps", "5", "--checkpoint", str(tmp_path)]
    done = subprocess.run([sys.executable, "-c", code, *arguments], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "5 steps" in done.stdout
