"""Collectives in compiled programs are waited for, and native code runs beside them."""

import pytest
import torch
from torch import distributed

import precast


@pytest.fixture
def group(tmp_path):
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield distributed.group.WORLD.group_name
    distributed.destroy_process_group()


def test_results_of_collectives_are_those_after_the_wait(group):
    exchange = torch.ops._c10d_functional

    @precast.compile
    def program(x):
        started = exchange.all_reduce(x * 2, "sum", group)
        beside = x.sin()
        return exchange.wait_tensor(started) + beside, exchange.wait_tensor(
            exchange.all_gather_into_tensor(x + 1, 1, group)
        )

    x = torch.randn(1000)
    total, gathered = program(x)
    torch.testing.assert_close(total, x * 2 + x.sin())
    torch.testing.assert_close(gathered, x + 1)
