"""What ops cost, against numbers worked out by hand."""

import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from precast.ops.cost import bytes_moved, bytes_of, flops, size_hint


def last_call(function, *inputs, tracing_mode="fake"):
    graph = make_fx(function, tracing_mode=tracing_mode)(*inputs).graph
    return [node for node in graph.nodes if node.op == "call_function"][-1]


def test_expanded_tensor_spans_what_its_strides_reach():
    assert bytes_of(torch.zeros(3).expand(1000, 3)) == 12


def test_empty_tensor_spans_nothing():
    assert bytes_of(torch.zeros(3, 0)) == 0


def test_tuple_spans_all_its_items():
    assert bytes_of((torch.zeros(3), [torch.zeros(2, dtype=torch.int64)], None)) == 28


def test_matmul_counts_two_flops_a_product():
    assert flops(last_call(torch.mm, torch.zeros(2, 3), torch.zeros(3, 5))) == 2 * 2 * 3 * 5


def test_attention_counts_both_matmuls():
    q = torch.zeros(1, 2, 8, 4)
    node = last_call(lambda q: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, q, q), q)
    owner = node.all_input_nodes[0]
    assert flops(owner) == 2 * (2 * 2 * 8 * 8 * 4)


def test_attention_counts_by_the_heads_of_the_queries():
    q, k = torch.zeros(1, 6, 8, 4), torch.zeros(1, 2, 5, 4)
    node = last_call(lambda q, k: torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, k), q, k)
    assert flops(node.all_input_nodes[0]) == 2 * (2 * 6 * 8 * 5 * 4)


def test_pointwise_counts_an_element_once_and_a_view_not_at_all():
    assert flops(last_call(torch.sin, torch.zeros(4, 5))) == 20
    assert flops(last_call(lambda x: x.view(20), torch.zeros(4, 5))) == 0


def test_bytes_moved_are_read_and_written():
    assert bytes_moved(last_call(torch.add, torch.zeros(4), torch.zeros(4))) == 48


def test_symbolic_sizes_count_by_their_hint_and_add_no_guard():
    shape_env = ShapeEnv()
    mode = FakeTensorMode(shape_env=shape_env)
    x, y = mode.from_tensor(torch.zeros(6, 7)), mode.from_tensor(torch.zeros(7, 9))
    with mode:
        node = last_call(torch.mm, x, y, tracing_mode="symbolic")
    before = len(shape_env.guards)
    assert flops(node) == 2 * 6 * 7 * 9
    assert [size_hint(size) for size in node.meta["val"].shape] == [6, 9]
    assert len(shape_env.guards) == before
