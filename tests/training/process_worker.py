"""One of several processes that train together."""

import json
import os
import subprocess
import sys
from datetime import timedelta

import torch
from torch import distributed

import precast

STEPS, ROWS = 6, 8


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.last = torch.nn.Linear(4, 33), torch.nn.LayerNorm(33), torch.nn.Linear(33, 2)

    def forward(self, x):
        return self.last(torch.tanh(self.norm(self.first(x))))


def loss_of(model, x):
    return torch.nn.functional.mse_loss(model(x), x[:, :2].sin())


def batches(count):
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS, 4, generator=generator) for _ in range(count)]


def make_optimizer(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def run(folder, settings):
    group = distributed.group.WORLD
    rank, count = group.rank(), group.size()
    model = Network()
    if rank:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    if rank and settings.get("separate_caches"):
        # Who is sent compiled code starts no compiler.
        subprocess.Popen = None
    chosen = {"grad_clip": 0.5, "bucket_bytes": 512, "backend": settings.get("backend", "nop")}
    data = [batch.chunk(count)[rank] for batch in batches(settings.get("steps", STEPS))]
    step = precast.train_step(
        model, loss_of, make_optimizer(model), data[0], process_group=group, shard=settings["shard"], **chosen
    )
    if settings.get("resume"):
        step.load_checkpoint(folder / "checkpoint")
    losses = []
    for number in range(settings.get("from", 0), len(data)):
        if settings.get("killed") == [rank, number]:
            os.kill(os.getpid(), 9)
        losses.append(step(data[number]).item())
        if settings.get("checkpoint_every") and (number + 1) % settings["checkpoint_every"] == 0:
            step.save_checkpoint(folder / "checkpoint")
            if rank == 0:
                (folder / "saved").write_text(str(number + 1))
    state = step.whole_state_dict()
    held = sum(p.nbytes for p in model.parameters())
    held += sum(t.nbytes for s in step.optimizer.state.values() for t in s.values())
    if rank == 0:
        torch.save(state, folder / "state.pt")
    (folder / f"result-{rank}.json").write_text(json.dumps({"losses": losses, "bytes": held}))


def serve(folder, settings, rank, count, port):
    """Train as the process of this rank, with the environment that torchrun gives it; what is printed is kept."""
    told = os.open(folder / f"told-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(told, stream)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(count), RANK=str(rank))
    if settings.get("separate_caches"):
        os.environ["PRECAST_CACHE_DIR"] = str(folder / f"cache-{rank}")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", timeout=timedelta(seconds=settings.get("timeout", 60)))
    try:
        run(folder, settings)
    except precast.PrecastError as error:
        (folder / f"error-{rank}.txt").write_text(str(error))
        sys.exit(7)
    distributed.destroy_process_group()
