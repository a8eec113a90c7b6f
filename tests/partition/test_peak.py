"""The estimated peak follows the lifetimes of values."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from precast.partition.trade_off import estimated_peak_bytes


def peak(function, *inputs, held=()):
    return estimated_peak_bytes(make_fx(function, tracing_mode="fake")(*inputs), held=held)


def test_chain_needs_two_values_at_once():
    assert peak(lambda x: x.sin().cos().exp(), torch.zeros(100)) == 2 * 400


def test_value_read_late_stays_alive():
    assert peak(lambda x: x.sin().cos() + x, torch.zeros(100)) == 3 * 400


def test_input_of_the_caller_does_not_count():
    assert peak(lambda x_1: x_1.sin(), torch.zeros(100), held={"x_1_1"}) == 400


def test_view_takes_no_memory_but_keeps_its_base():
    assert peak(lambda x: x.sin().view(10, 10).t(), torch.zeros(100)) == 2 * 400
