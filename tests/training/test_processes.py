"""Several processes train as one would on all of the batch, whoever holds what; one that ends is missed by name."""

import json
import multiprocessing
import random
import socket

import numpy
import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import precast
from precast.errors import InputTypeError, InputValueError
from precast.training.schedule import schedule_collectives
from tests.training.like_eager import eager_step
from tests.training.process_worker import STEPS, Network, batches, loss_of, make_optimizer, serve


def run(folder, count, **settings):
    """The exit codes of the processes, and what they printed. They are forked where torch is imported already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.process_worker", "precast.training"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [context.Process(target=serve, args=(folder, settings, rank, count, port)) for rank in range(count)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(300)
        process.kill()
        process.join()
    told = [(folder / f"told-{rank}.txt").read_text() for rank in range(count)]
    return [process.exitcode for process in processes], "\n".join(told)


def trained_in_one(steps=STEPS):
    model = Network()
    optimizer = make_optimizer(model)
    return [eager_step(model, loss_of, optimizer, batch, grad_clip=0.5).item() for batch in batches(steps)], model


def assert_trained_like_one(folder, steps=STEPS):
    losses, model = trained_in_one(steps)
    found = json.loads((folder / "result-0.json").read_text())["losses"]
    torch.testing.assert_close(found, losses[-len(found) :], rtol=1e-5, atol=1e-6)
    state = torch.load(folder / "state.pt")
    for name, expected in model.state_dict().items():
        torch.testing.assert_close(state[name], expected, rtol=2e-5, atol=2e-6)


def bytes_held(folder):
    return json.loads((folder / "result-0.json").read_text())["bytes"]


@pytest.mark.parametrize(
    "shard",
    [pytest.param("none", marks=pytest.mark.slow), pytest.param("optimizer", marks=pytest.mark.slow), "parameters"],
)
def test_two_processes_train_as_one_on_the_joined_batch(tmp_path, shard):
    codes, told = run(tmp_path, 2, shard=shard)
    assert codes == [0, 0], told
    assert_trained_like_one(tmp_path)
    parameters = sum(p.nbytes for p in Network().parameters())
    held = {"none": 3 * parameters, "optimizer": 2 * parameters, "parameters": parameters}
    # Sizes that two do not divide are filled up, and every parameter counts its steps.
    assert held[shard] <= bytes_held(tmp_path) <= held[shard] + 200


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "optimizer", "parameters"])
def test_native_processes_train_as_one(tmp_path, shard):
    codes, told = run(tmp_path, 2, shard=shard, backend="native")
    assert codes == [0, 0], told
    assert_trained_like_one(tmp_path)


@pytest.mark.slow
def test_processes_without_a_common_cache_are_sent_what_the_first_has_compiled(tmp_path):
    codes, told = run(tmp_path, 2, shard="none", backend="native", separate_caches=True)
    assert codes == [0, 0], told
    assert_trained_like_one(tmp_path)
    objects = [{path.name for path in (tmp_path / f"cache-{rank}").rglob("*.*o")} for rank in range(2)]
    assert objects[0]
    assert objects[0] == objects[1]


@pytest.mark.slow
@pytest.mark.parametrize("shard", ["none", "optimizer", "parameters"])
def test_a_checkpoint_is_continued_by_another_number_of_processes(tmp_path, shard):
    codes, told = run(tmp_path, 2, shard=shard, steps=3, checkpoint_every=3)
    assert codes == [0, 0], told
    for count in (4, 1):
        codes, told = run(tmp_path, count, shard=shard, resume=True, **{"from": 3})
        assert set(codes) == {0}, told
        assert_trained_like_one(tmp_path)


def killed_and_continued(folder, seed):
    """Kill one of four processes before a step, look at the others, and go on from the last checkpoint."""
    draw = random.Random(seed)
    rank, number = draw.randrange(4), draw.randrange(2, STEPS)
    shard = draw.choice(["none", "optimizer", "parameters"])
    codes, told = run(folder, 4, shard=shard, checkpoint_every=2, killed=[rank, number], timeout=200)
    assert codes[rank] == -9
    for other in set(range(4)) - {rank}:
        assert codes[other] == 7, told
        assert f"Process {rank} of 4 no longer responds" in (folder / f"error-{other}.txt").read_text()
    saved = int((folder / "saved").read_text())
    assert saved == number // 2 * 2
    codes, told = run(folder, 4, shard=shard, resume=True, **{"from": saved})
    assert set(codes) == {0}, told
    assert_trained_like_one(folder)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
def test_a_process_that_is_killed_is_named_and_training_goes_on_from_the_checkpoint(tmp_path, seed):
    killed_and_continued(tmp_path, seed)


@pytest.fixture
def alone(tmp_path):
    """A process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


def test_exchanges_begin_when_their_gradients_exist_and_are_waited_for_at_the_end(alone):
    model = Network()
    step = precast.train_step(
        model, loss_of, make_optimizer(model), batches(1)[0], process_group=alone, bucket_bytes=64, backend="nop"
    )
    names = [str(node.target) for node in schedule_collectives(step.program.graph_module).graph.nodes]
    starts = [place for place, name in enumerate(names) if "all_reduce" in name]
    waits = [place for place, name in enumerate(names) if "wait_tensor" in name]
    products = [place for place, name in enumerate(names) if name.startswith("aten.mm")]
    assert len(starts) >= 4
    assert starts[1] < products[-1] < min(waits)


def test_optimizers_that_look_at_whole_parameters_are_not_sharded(alone):
    model = Network()
    optimizer = torch.optim.Adafactor(model.parameters())
    with pytest.raises(InputValueError, match="looks at whole parameters"):
        precast.train_step(model, loss_of, optimizer, batches(1)[0], process_group=alone, shard="optimizer")
    with pytest.raises(InputValueError, match="shard cannot be"):
        precast.train_step(model, loss_of, make_optimizer(model), batches(1)[0], shard="optimizer")


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [(DistributedDataParallel, "DistributedDataParallel"), (fully_shard, "FSDPModule")],
    ids=["ddp", "fully_shard"],
)
def test_wrappers_that_exchange_gradients_themselves_are_refused(alone, wrap, kind):
    model = wrap(Network())
    with pytest.raises(InputTypeError, match=rf"is a {kind}.*\n.*\n.*Pass the module.*process_group="):
        precast.train_step(model, loss_of, make_optimizer(model), batches(1)[0], backend="nop")


def test_a_checkpoint_of_another_step_is_refused(tmp_path):
    def made(width):
        model = torch.nn.Linear(4, width)
        loss_fn = lambda model, x: model(x).square().mean()  # noqa: E731
        return precast.train_step(model, loss_fn, make_optimizer(model), batches(1)[0], backend="nop")

    step, other = made(2), made(3)
    step(batches(1)[0])
    step.save_checkpoint(tmp_path)
    before = other.model.weight.clone()
    with pytest.raises(precast.errors.ArtifactError, match="not one of this step"):
        other.load_checkpoint(tmp_path)
    with pytest.raises(precast.errors.ArtifactError, match="holds no checkpoint"):
        other.load_checkpoint(tmp_path / "nowhere")
    assert torch.equal(other.model.weight, before)
    again = made(2)
    step.optimizer.param_groups[0]["lr"] = numpy.float32(0.5)
    step.save_checkpoint(tmp_path)
    again.load_checkpoint(tmp_path)
    assert again.optimizer.param_groups[0]["lr"] == 0.5
    for batch in batches(3):
        assert again(batch) == step(batch)
