import torch

from precast.autograd import aot_function

graphs = []


def keep(graph, _):
    graphs.append(graph)
    return graph


def program(x, y):
    x.add_(1)
    y.t_()
    return x * 2, x


def writes(graph):
    return [node for node in graph.graph.nodes if node.target is torch.ops.aten.copy_.default]


def test_an_update_stays_inside_an_inference_graph_on_demand():
    graphs.clear()
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    doubled, same = aot_function(program, keep, keep_inference_input_mutations=True)(x, y)
    assert len(writes(graphs[0])) == 1
    assert same is x
    assert (x.unique().item(), doubled.unique().item(), tuple(y.shape)) == (1, 2, (3, 2))


def test_by_default_graphs_do_not_write():
    graphs.clear()
    x, y = torch.zeros(2, 3), torch.ones(2, 3)
    aot_function(program, keep)(x, y)
    assert writes(graphs[0]) == []
    assert x.unique().item() == 1


def test_where_gradients_are_needed_the_update_is_applied_outside():
    graphs.clear()
    weight = torch.ones(3, requires_grad=True)
    x = torch.zeros(3)
    aot_function(lambda x, w: x.add_(1) * w, keep, keep_inference_input_mutations=True)(x, weight).sum().backward()
    assert writes(graphs[0]) == []
    assert x.tolist() == [1, 1, 1]
    assert weight.grad.tolist() == [1, 1, 1]
