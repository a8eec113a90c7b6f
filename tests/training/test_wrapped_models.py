"""Models wrapped by DistributedDataParallel or fully_shard, and then compiled, train as they do in eager."""

import json
from contextlib import nullcontext

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import precast


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.blocks = nn.Linear(8, 16), nn.ModuleList(Block() for _ in range(2))
        self.norm, self.leave = nn.GroupNorm(2, 16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x)
        return self.leave(self.norm(x))


def sharded(**settings):
    model = Network()
    for block in model.blocks:
        fully_shard(block, **settings)
    return fully_shard(model, **settings)


IN_BFLOAT16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
WRAPPED = {
    "ddp": lambda: DistributedDataParallel(Network()),
    "ddp, small buckets": lambda: DistributedDataParallel(Network(), bucket_cap_mb=0.001),
    "ddp, views": lambda: DistributedDataParallel(Network(), gradient_as_bucket_view=True),
    "ddp, static": lambda: DistributedDataParallel(Network(), static_graph=True),
    "ddp, accumulated": lambda: DistributedDataParallel(Network(), find_unused_parameters=True),
    "fully_shard": sharded,
    "fully_shard, kept": lambda: sharded(reshard_after_forward=False),
    "fully_shard, bfloat16": lambda: sharded(mp_policy=IN_BFLOAT16),
    "fully_shard, accumulated": sharded,
}


def trained(wrapped, call, rank, *, accumulates):
    """Losses and parameters after some steps; with ``accumulates``, each second backward exchanges gradients."""
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for number in range(4):
        x = torch.randn(8, 8, generator=generator).chunk(2)[rank]
        exchanges = not accumulates or number % 2 == 1
        if not isinstance(wrapped, DistributedDataParallel):
            wrapped.set_requires_gradient_sync(exchanges)
        waits = isinstance(wrapped, DistributedDataParallel) and not exchanges
        with wrapped.no_sync() if waits else nullcontext():
            loss = call(x).float().square().mean()
            loss.backward()
        losses.append(loss.item())
        if exchanges:
            optimizer.step()
            optimizer.zero_grad()
    return losses, [whole(parameter).detach() for parameter in wrapped.parameters()]


def whole(parameter):
    return parameter.full_tensor() if isinstance(parameter, DTensor) else parameter


def work(rank, folder, names, backend, count):
    """One of the processes; the first writes down how far both ways are apart, and what was compiled."""
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count)
    found = {}
    for name in names:
        eager, own = WRAPPED[name](), WRAPPED[name]()
        compiled = precast.compile(own, backend=backend)
        accumulates = name.endswith("accumulated")
        theirs, expected = trained(eager, eager, rank, accumulates=accumulates)
        ours, parameters = trained(own, compiled, rank, accumulates=accumulates)
        pairs = [*zip(map(torch.tensor, ours), map(torch.tensor, theirs), strict=True)]
        pairs += zip(parameters, expected, strict=True)
        found[name] = max((one - other).abs().max().item() for one, other in pairs), len(precast.variants(compiled))
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def run(folder, names, backend, count=2):
    if count == 1:
        work(0, folder, names, backend, count)
    else:
        torch.multiprocessing.start_processes(work, (folder, names, backend, count), nprocs=count, start_method="spawn")
    return json.loads((folder / "found.json").read_text())


def test_wrapped_models_train_as_in_eager(tmp_path):
    found = run(tmp_path, ["ddp", "fully_shard"], "nop", count=1)
    assert [distance for distance, _ in found.values()] == [0, 0]
    # The wrapped module is compiled as a whole, and so is each block whose parameters are gathered for it.
    assert found["ddp"][1] == 2
    assert found["fully_shard"][1] >= 3


@pytest.mark.slow
def test_two_processes_train_wrapped_models_as_in_eager(tmp_path):
    found = run(tmp_path, list(WRAPPED), "nop")
    assert found.keys() == WRAPPED.keys()
    assert {distance for distance, _ in found.values()} == {0}


@pytest.mark.slow
def test_two_processes_train_wrapped_models_natively(tmp_path):
    found = run(tmp_path, ["ddp", "ddp, accumulated", "fully_shard"], "native")
    assert max(distance for distance, _ in found.values()) < 1e-5
