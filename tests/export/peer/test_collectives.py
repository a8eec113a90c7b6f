"""Collectives in a program: recorded in their functional form, saved by group name, run by one or two processes."""

import io
import tempfile
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
import torch.multiprocessing

import precast
from precast.errors import CaptureError

PROGRAMS = {}


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


def program(function):
    PROGRAMS[function.__name__] = function
    return function


@program
def functional_all_reduce(x):
    return functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1


@program
def functional_all_gather(x):
    return functional.all_gather_tensor(x, 1, dist.group.WORLD)


@program
def functional_reduce_scatter(x):
    return functional.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD)


@program
def functional_all_to_all(x):
    return functional.all_to_all_single(x, None, None, dist.group.WORLD)


@program
def all_reduce(x):
    y = x.clone()
    dist.all_reduce(y)
    dist.all_reduce(y, op=dist.ReduceOp.MAX, group=dist.group.WORLD)
    return y + 1


@program
def all_reduce_of_the_input(x):
    dist.all_reduce(x)
    return x * dist.get_world_size() + dist.get_rank()


@program
def all_reduce_that_is_waited_for(x):
    y = x.clone()
    dist.all_reduce(y, async_op=True).wait()
    dist.barrier()
    return y


@program
def all_gather(x):
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x)
    return parts


@program
def all_gather_into_tensor(x):
    whole = torch.empty(dist.get_world_size() * x.shape[0], x.shape[1])
    dist.all_gather_into_tensor(whole, x)
    return whole


@program
def reduce_scatter(x):
    own = torch.empty(x.shape[0] // dist.get_world_size(), x.shape[1])
    dist.reduce_scatter_tensor(own, x)
    return own


@program
def all_to_all(x):
    received = torch.empty_like(x)
    dist.all_to_all_single(received, x)
    lists = [list(each.chunk(dist.get_world_size())) for each in (torch.empty_like(x), received)]
    dist.all_to_all(*lists)
    return received, *lists[0]


@program
def broadcast(x):
    y = x.clone()
    dist.broadcast(y, dist.get_world_size() - 1)
    return y


def check(name: str) -> None:
    function = PROGRAMS[name]
    x = torch.randn(4, 3)
    wanted = function(x.clone())
    exported = precast.export(Calls(function), (x.clone(),))
    targets = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert any(target.startswith("_c10d_functional.") for target in targets)
    assert not any(target.startswith("c10d.") for target in targets)
    torch.testing.assert_close(exported.module()(x.clone()), wanted)
    file = io.BytesIO()
    precast.save(exported, file)
    torch.testing.assert_close(precast.load(file).module()(x.clone()), wanted)
    torch.testing.assert_close(exported.run_decompositions().module()(x.clone()), wanted)


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", PROGRAMS)
def test_one_process(one_process, name):
    check(name)


def run_rank(rank: int, folder: str) -> None:
    store = dist.FileStore(str(Path(folder) / "store"), 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    torch.manual_seed(rank)
    for name in PROGRAMS:
        check(name)
    group = dist.new_group([0, 1])
    exported = precast.export(Calls(lambda x: functional.all_reduce(x, "sum", group)), (torch.ones(2),))
    (node,) = [node for node in exported.graph.nodes if "all_reduce" in str(node.target)]
    assert node.args[2] == group.group_name
    dist.destroy_process_group()


@pytest.mark.slow
def test_two_processes():
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(run_rank, (folder,), nprocs=2)


def test_collectives_that_have_no_functional_form_are_refused_by_name(one_process):
    with pytest.raises(CaptureError, match="collective reduce"):
        precast.export(Calls(lambda x: dist.reduce(x, 0)), (torch.ones(2),))


def test_a_file_cannot_ask_for_more_processes_than_there_are(one_process):
    exported = precast.export(Calls(functional_all_gather), (torch.ones(2, 2),))
    (node,) = [node for node in exported.graph.nodes if "all_gather" in str(node.target)]
    node.args = (node.args[0], 7, node.args[2])
    with pytest.raises(ValueError, match="do not fit together"):
        exported.module()(torch.ones(2, 2))


def test_outside_of_tracing_collectives_are_what_they_were(one_process):
    precast.export(Calls(all_reduce), (torch.ones(2),))
    assert isinstance(dist.all_reduce(torch.ones(2), async_op=True), dist.Work)
