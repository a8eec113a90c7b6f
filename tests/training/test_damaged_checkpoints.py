"""Checkpoints that were damaged, or mean it: taken as a whole or refused, and nothing of the step changed then."""

import json
import random
import shutil

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.errors import ArtifactError
from precast.runtime.train_loop import CHECKPOINT, load_checkpoint, save_checkpoint
from tests.hostile.mutations import anything
from tests.training.like_eager import Network, batches, loss_of


@pytest.fixture(scope="module")
def step():
    model = Network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    return precast.train_step(model, loss_of, optimizer, batches(1)[0], backend="nop", entries=("train",))


@pytest.fixture(scope="module")
def saved(step, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    step(batches(1)[0])
    step.save_checkpoint(folder)
    return folder


def state_of(step):
    found = {name: value.clone() for name, value in step.model.state_dict().items()}
    return found, json.dumps(step.optimizer.state_dict()["param_groups"])


def assert_taken_or_refused(step, folder):
    before = state_of(step)
    try:
        step.load_checkpoint(folder)
    except ArtifactError:
        now = state_of(step)
        assert now[1] == before[1]
        assert all(torch.equal(value, now[0][name]) for name, value in before[0].items())


WRONG = {
    "a list": [],
    "nothing": {},
    "another folder": {"folder": "../checkpoint-0"},
    "no process": {"processes": 0},
    "a number as text": {"processes": "1"},
    "very many processes": {"processes": 99_999},
    "shards": {"sharded": {"model.first.weight": 3}},
    "no groups": {"groups": []},
    "a list of numbers": {"groups": [3]},
    "a rate of text": {"groups": [{"lr": "fast"}]},
    "a rate of several": {"groups": [{"lr": [1.0]}]},
    "too few betas": {"groups": [{"betas": [0.9]}]},
    "betas of text": {"groups": [{"betas": ["a", "b"]}]},
    "parameters": {"groups": [{"params": []}]},
    "an object": {"groups": [{"foreach": {"a": 1}}]},
}


@pytest.mark.parametrize("wrong", WRONG.values(), ids=WRONG)
def test_an_index_that_is_no_such_index_is_refused_by_the_name_of_its_file(step, saved, tmp_path, wrong):
    folder = shutil.copytree(saved, tmp_path / "damaged")
    content = json.loads((saved / "index.json").read_text())
    changed = {**content, **wrong} if wrong else wrong
    (folder / "index.json").write_text(json.dumps(changed))
    before = state_of(step)
    with pytest.raises(ArtifactError, match="damaged"):
        step.load_checkpoint(folder)
    assert state_of(step)[1] == before[1]


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "1" * 10_000, "\x00", '{"folder": "checkpoint-0"'])
def test_an_index_that_is_no_json_is_refused(step, saved, tmp_path, text):
    folder = shutil.copytree(saved, tmp_path / "damaged")
    (folder / "index.json").write_text(text)
    with pytest.raises(ArtifactError, match="holds no checkpoint"):
        step.load_checkpoint(folder)


def with_other_value(content, rng):
    """The index with something else at one place."""
    at = content
    while True:
        key = rng.choice(list(at) if isinstance(at, dict) else range(len(at)))
        if not isinstance(at[key], dict | list) or not at[key] or rng.random() < 0.3:
            at[key] = anything(rng, at[key])
            return content
        at = at[key]


def with_other_bytes(data, rng):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        data[rng.choice([rng.randrange(len(data)), rng.randrange(min(len(data), 3000))])] = rng.randrange(256)
    return bytes(data[: rng.randrange(len(data))] if rng.random() < 0.3 else data)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_damaged_checkpoints_are_taken_or_refused(step, saved, tmp_path, seed):
    rng = random.Random(seed)
    folder = shutil.copytree(saved, tmp_path / "damaged")
    (shard,) = folder.rglob("*.safetensors")
    index, data = (folder / "index.json").read_text(), shard.read_bytes()
    for _ in range(100):
        (folder / "index.json").write_text(index)
        shard.write_bytes(data)
        if rng.random() < 0.5:
            (folder / "index.json").write_text(json.dumps(with_other_value(json.loads(index), rng)))
        else:
            shard.write_bytes(with_other_bytes(data, rng))
        assert_taken_or_refused(step, folder)
    step.load_checkpoint(saved)


def test_damaged_checkpoints_of_files_are_taken_or_refused(step, tmp_path):
    model = precast.runtime.load(step.save(tmp_path / "model.precast"))
    model["train_step"](batches(1)[0].numpy())
    data = save_checkpoint(model, tmp_path, 3).read_bytes()
    rng = random.Random(0)
    for _ in range(200):
        (tmp_path / CHECKPOINT).write_bytes(with_other_bytes(data, rng))
        before = {name: value.copy() for name, value in model.state.items()}
        try:
            assert load_checkpoint(model, tmp_path) >= 0
        except ArtifactError:
            assert all(np.array_equal(value, model.state[name], equal_nan=True) for name, value in before.items())
