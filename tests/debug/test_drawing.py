"""Drawings of graphs: always SVG, by graphviz where it is there."""

import shutil
from itertools import pairwise
from xml.etree import ElementTree

import pytest
import torch
from torch import fx

import precast
from precast.compilers import draw_graph, draw_graph_compile
from precast.debug import drawing
from precast.debug.layered_layout import lay_out_boxes
from precast.errors import InputValueError, ToolMissingError

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def no_graphviz(monkeypatch):
    monkeypatch.setattr(drawing.shutil, "which", lambda program: None)


@pytest.fixture
def graph_module(trace):
    return trace(lambda x, y: (torch.sin(x) @ y + x, y.sum()), torch.ones(2, 2), torch.ones(2, 2))[0]


def texts(path):
    return [element.text for element in ElementTree.parse(path).iter(f"{SVG}text")]


def test_svg_shows_every_node_and_arrow(graph_module, tmp_path, no_graphviz):
    path = draw_graph(graph_module, tmp_path / "graph.svg")
    assert {node.name for node in graph_module.graph.nodes} <= set(texts(path))
    assert "aten.mm.default" in texts(path)
    arrows = [element for element in ElementTree.parse(path).iter(f"{SVG}path") if "arrow" in element.get("class", "")]
    assert len(arrows) == sum(len(node.all_input_nodes) for node in graph_module.graph.nodes)


def test_meta_is_shown_on_demand(graph_module, tmp_path, no_graphviz):
    mm = next(node for node in graph_module.graph.nodes if node.name == "mm")
    mm.stack_trace = '  File "model.py", line 3, in forward\n    x @ y\n'
    mm.meta["nn_module_stack"] = {"key": ("layers.0", "Linear")}
    plain = draw_graph(graph_module, tmp_path / "plain.svg")
    full = draw_graph(graph_module, tmp_path / "full.svg", clear_meta=False)
    assert "f32[2, 2]" not in texts(plain)
    assert {"f32[2, 2]", "layers.0"} <= set(texts(full))
    assert "model.py:3 in forward: x @ y" in full.read_text()


def test_text_is_escaped(tmp_path, no_graphviz):
    def strange(x):
        return x

    strange.__name__ = "<&\"'\x00]]>"
    graph = fx.Graph()
    graph.output(graph.call_function(strange, (graph.placeholder("x"),)))
    path = draw_graph(fx.GraphModule(torch.nn.Module(), graph), tmp_path / "graph.svg")
    assert any("<&\"'\ufffd]]>" in text for text in texts(path))


def test_suffix_is_svg_if_there_is_none(graph_module, tmp_path):
    assert draw_graph(graph_module, tmp_path / "new" / "graph") == tmp_path / "new" / "graph.svg"
    ElementTree.parse(tmp_path / "new" / "graph.svg")


def test_dot_text_names_nodes_and_arrows(graph_module, tmp_path):
    text = draw_graph(graph_module, tmp_path / "graph.dot").read_text()
    assert text.startswith("digraph")
    assert 'label="mm\\naten.mm.default"' in text
    assert text.count(" -> ") == sum(len(node.all_input_nodes) for node in graph_module.graph.nodes)


@pytest.mark.parametrize("suffix", ["pdf", "png"])
def test_without_graphviz_the_package_is_named(graph_module, tmp_path, no_graphviz, suffix):
    with pytest.raises(ToolMissingError, match="install the package 'graphviz'"):
        draw_graph(graph_module, tmp_path / f"graph.{suffix}")


@pytest.mark.skipif(shutil.which("dot") is None, reason="needs graphviz")
@pytest.mark.parametrize(("suffix", "start"), [("pdf", b"%PDF"), ("png", b"\x89PNG"), ("svg", b"<?xml")])
def test_graphviz_draws(graph_module, tmp_path, suffix, start):
    assert draw_graph(graph_module, tmp_path / f"graph.{suffix}").read_bytes().startswith(start)


def test_svg_is_ours_when_graphviz_takes_too_long(graph_module, tmp_path, monkeypatch):
    slow = tmp_path / "bin" / "dot"
    slow.parent.mkdir()
    slow.write_text("#!/bin/sh\nexec sleep 30\n")
    slow.chmod(0o755)
    monkeypatch.setenv("PATH", str(slow.parent), prepend=":")
    monkeypatch.setattr(drawing, "_GRAPHVIZ_SECONDS", 0.2)
    assert "mm" in texts(draw_graph(graph_module, tmp_path / "graph.svg"))


def test_unknown_suffix_is_refused(graph_module, tmp_path):
    with pytest.raises(InputValueError, match=r"cannot draw a graph as '\.gif'"):
        draw_graph(graph_module, tmp_path / "graph.gif")


def test_compiler_draws_prints_and_runs(trace, tmp_path, capsys):
    graph_module, fakes = trace(torch.exp, torch.ones(2))
    run = draw_graph_compile(str(tmp_path / "graph"))(graph_module, fakes)
    torch.testing.assert_close(run(torch.zeros(2)), torch.ones(2))
    assert "torch.ops.aten.exp.default" in capsys.readouterr().out
    assert "exp" in texts(tmp_path / "graph.svg")


def test_the_backward_is_drawn_beside_the_forward(tmp_path, no_graphviz):
    draw = draw_graph_compile(str(tmp_path / "graph"))
    function = precast.aot_function(lambda x: x.sin().sum(), draw, draw)
    for size in (2, 3):
        function(torch.ones(size, requires_grad=True)).backward()
    assert {path.name for path in tmp_path.iterdir()} == {
        "graph.svg", "graph_backward.svg", "graph_forward.svg", "graph_backward_2.svg",
    }  # fmt: skip
    assert "sin" in texts(tmp_path / "graph.svg")
    assert "cos" in texts(tmp_path / "graph_backward.svg")


def random_graph(count):
    arrows = [(source, target) for target in range(1, count) for source in {target // 2, max(0, target - 7)}]
    return [(80.0, 30.0)] * count, arrows


def test_boxes_do_not_overlap_and_arrows_point_down():
    sizes, arrows = random_graph(120)
    layout = lay_out_boxes(sizes, arrows)
    for source, target in arrows:
        assert layout.centres[source][1] < layout.centres[target][1]
    by_row = {}
    for x, y in layout.centres:
        by_row.setdefault(y, []).append(x)
    for row in by_row.values():
        row.sort()
        assert all(right - left >= 80 for left, right in pairwise(row))
    assert all(40 <= x <= layout.width - 40 and 15 <= y <= layout.height - 15 for x, y in layout.centres)


def test_bent_arrows_pass_beside_boxes():
    sizes, arrows = [(80.0, 30.0)] * 6, [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (4, 5)]
    layout = lay_out_boxes(sizes, arrows)
    for x, y in layout.routes[4][1:-1]:
        for box_x, box_y in layout.centres:
            assert abs(x - box_x) >= 40 or abs(y - box_y) > 15


def test_arrows_over_many_layers_are_drawn():
    count = 100
    layout = lay_out_boxes([(80.0, 30.0)] * count, [*((i, i + 1) for i in range(count - 1)), (0, count - 1)])
    assert len(layout.routes[-1]) == 2
    assert layout.far == {count - 1}


def test_empty_graph_is_drawn():
    assert lay_out_boxes([], []).centres == ()
