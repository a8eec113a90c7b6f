"""What programs tell and take."""

import copy
import io

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.nn import functional as F
from torch.testing._internal.custom_tensor import CustomTensorPlainOut

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, operators, raises


@torch.jit.script
def _scripted(x: torch.Tensor):
    if torch.jit.is_scripting():
        return x.cos()
    return x.sin()


class Sub1(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.ones(3, 4))
        self.p2 = nn.Parameter(CustomTensorPlainOut(torch.ones(3, 4), torch.ones(3, 4)))

    def forward(self, x):
        return x + (2 * self.p1 + self.p2).sum()


class _L(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.randn(5, 6)
        self.bias = torch.randn(5)

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


def custom_tag_reexport(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.rand(4, 2))
            self.b = nn.Parameter(torch.rand(4))

        def forward(self, x):
            return F.linear(x, self.w, self.b)

    x = (torch.zeros(1, 2),)
    ep = peer.export(Foo(), x)
    gm = copy.deepcopy(ep.graph_module)
    gm.meta["custom"] = {"f": "bar"}
    for n in gm.graph.nodes:
        if n.target == torch.ops.aten.linear.default:
            n.meta["custom"] = {"quantization_tag": "foo"}
    ep = peer.export(ep._update(gm, ep.graph_signature).module(), x)
    assert ep.graph_module.meta["custom"]["f"] == "bar"
    return [n.name for n in ep.graph.nodes if "custom" in n.meta]


def from_node(peer):
    from torch.fx.traceback import NodeSourceAction

    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)

        def forward(self, x):
            return self.a(x) + 1

    ep = peer.export(Foo(), (torch.rand(2, 3),))
    gm = ep.module()
    for n in gm.graph.nodes:
        if n.op in ("placeholder", "output", "call_module"):
            continue
        last = n.meta["from_node"][-1]
        if "weight" in n.name or "bias" in n.name:
            assert last.pass_name == "ExportedProgram.module().unlift()"
            assert last.from_node[-1].graph_id == id(ep.graph)
            assert last.action == [NodeSourceAction.CREATE, NodeSourceAction.REPLACE]
        else:
            assert last.pass_name == "ExportedProgram.module()"
            assert last.graph_id == id(ep.graph)
            assert last.action == [NodeSourceAction.CREATE]


def inline_script(peer):
    ep = peer.export(module_of(lambda s, x: _scripted(x)), (torch.randn(3, 4),))
    x = torch.rand(3, 4)
    assert_close(ep.module()(x), x.sin())
    return operators(ep)


def inline_script_method(peer):
    class S(torch.jit.ScriptModule):
        @torch.jit.script_method
        def _f(self, x: torch.Tensor):
            if torch.jit.is_scripting():
                return x.cos()
            return x.sin()

        def forward(self, x):
            return self._f(x)

    class W(nn.Module):
        def __init__(self, m):
            super().__init__()
            self.mod = m

        def forward(self, x):
            return self.mod(x)

    return operators(peer.export(W(S()), (torch.rand(3, 4),)))


def fake_inputs(peer):
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.param = nn.Parameter(torch.randn(3, 2))

        def forward(self, x, y):
            return x[0] + y - self.param

    with FakeTensorMode(shape_env=ShapeEnv(tracked_fakes=[])):
        args = ([torch.empty(3, 2)], torch.empty(3, 2))
    m = B()
    ep = peer.export(m, args, strict=False)
    a = ([torch.randn(3, 2)], torch.randn(3, 2))
    assert_close(ep.module()(*a), m(*a))


def output_node_name(peer):
    assert list(peer.export(nn.Linear(3, 3), (torch.rand(2, 3),)).module().graph.nodes)[-1].name == "output"


def script_module_refused(peer):
    with raises(ValueError, "ScriptModule is not supported"):
        peer.export(torch.jit.script(nn.Linear(2, 2)), (torch.rand(2, 2),))


def training_code(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            return self.linear(x)

    ep = peer.export(A(), (torch.ones(2, 2),))
    c = ep.module().code
    assert "self.linear.weight" in c
    return ep.graph_module.code


def export_module_state(peer):
    ep = peer.export(Sub1(), (torch.randn(3, 4),))
    b = list(ep.state_dict)
    ep.run_decompositions()
    assert list(ep.state_dict) == b


def sequential_slicing(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.seq = nn.Sequential(*[nn.Linear(4, 4) for _ in range(3)])

        def forward(self, x):
            return self.seq[1:](x)

    class B(A):
        def __init__(self):
            super().__init__()
            self.seq_last = self.seq[1:]

        def forward(self, x):
            return self.seq_last(x)

    agrees_with_eager(peer, A(), (torch.randn(4, 4),))
    agrees_with_eager(peer, B(), (torch.randn(4, 4),))


def param_util(peer):
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(10, 1)

        def forward(self, x):
            return self.lin(x)

    ep = peer.export(B(), (torch.randn(5, 10),))
    s = ep.graph_signature
    return {
        n.name: tuple(ep.state_dict[s.inputs_to_parameters[n.name]].shape)
        for n in ep.graph.nodes
        if n.name in s.inputs_to_parameters
    }


def reexport(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)
            self.linear = _L()

        def forward(self, x):
            a1, a2 = x["a"]
            return {
                "a": self.linear(self.conv(a1)).cos(),
                "b": self.linear(self.conv(a2)).sin() + self.conv(x["b"]).sum(),
            }

    def r():
        return torch.randn(2, 3, 5, 8)

    m = Foo()
    ep = peer.export(m, ({"a": (r(), r()), "b": r()},))
    ep2 = peer.export(ep.module(), ({"a": (r(), r()), "b": r()},))
    x = {"a": (r(), r()), "b": r()}
    assert_close(ep2.module()(x), m(x))
    assert_close(ep.module()(x), m(x))


def assert_async(peer):
    def f(s, x):
        torch.ops.aten._assert_async.msg(torch.tensor(True), "Fail")
        return x

    assert peer.export(module_of(f), (torch.randn(2, 2),)).graph_module.code.count("_assert_async.msg") == 1


def markers_clean(peer):
    a = ({"x": torch.randn(4, 8), "y": torch.randn(4, 8)},)
    peer.export(
        module_of(lambda s, inputs: inputs["x"] + inputs["y"]),
        a,
        dynamic_shapes={"inputs": {"x": (peer.Dim.AUTO, peer.Dim.STATIC), "y": (peer.Dim.DYNAMIC, peer.Dim.STATIC)}},
    )
    for t in a[0].values():
        assert not [k for k in t.__dict__ if "dynamo" in k], t.__dict__


def fake_meta(peer):
    with FakeTensorMode(), torch.device("meta"):
        x = torch.rand(5, 2, 2)
        m = nn.Linear(2, 2)
        ep = peer.export(m, (x,))
        assert ep.module()(x).size() == m(x).size()
        v = [n.meta["val"] for n in ep.graph.nodes if "val" in n.meta]
        assert all(a.device == x.device and a.fake_mode is v[0].fake_mode for a in v)
        assert ep.run_decompositions().module()(x).size() == m(x).size()


def fake_cuda(peer):
    with FakeTensorMode(), torch.device("meta"):
        x = torch.rand(5, 2, 2)
        m = nn.Linear(2, 2)
    x.fake_device = torch.device("cuda:0")
    x.requires_grad = False
    for p in m.parameters():
        p.fake_device = torch.device("cuda:0")
        p.requires_grad = False
    ep = peer.export(m, (x,))
    v = [n.meta["val"] for n in ep.graph.nodes if "val" in n.meta]
    assert all(a.device == x.device and a.fake_mode is v[0].fake_mode for a in v)


def str_ep(peer):
    t = str(peer.export(nn.Linear(2, 2), (torch.ones(1, 2),)))
    assert "ExportedProgram" in t
    assert "Graph signature" in t
    assert "Range constraints" in t


def graph_module_call(peer):
    ep = peer.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    p = dict(ep.named_parameters())
    r = ep.graph_module(p["weight"], p["bias"], torch.ones(1, 2))
    assert isinstance(r, tuple)
    assert len(r) == 1


def deepcopy(peer):
    ep = peer.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    e = copy.deepcopy(ep)
    assert_close(e.module()(torch.ones(1, 2)), ep.module()(torch.ones(1, 2)))
    copy.deepcopy(ep.module())(torch.ones(1, 2))


def train_exported(peer):
    m = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1), nn.BatchNorm1d(2))
    ep = peer.export(m, (torch.randn(4, 2),))
    g = ep.module()
    o = torch.optim.SGD(g.parameters(), lr=0.1)
    part = g(torch.randn(4, 2)).sum()
    part.backward()
    o.step()


def replace_hook(peer):
    ep = peer.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    s = ep.graph_signature
    n = next(n for n in ep.graph.nodes if n.op == "call_function")
    with ep.graph_module._set_replace_hook(s.get_replace_hook()):
        n.name = "other" if False else n.name
    s.replace_all_uses(n.name, "renamed")
    return list(s.user_outputs)


def verifier_bad(peer):
    ep = peer.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    ep._validate()
    ep.graph_module.graph.output_node().args = ((ep.graph_module.graph.output_node().args[0][0],) * 2,)
    with raises(Exception):
        ep._validate()


def save_extra(peer):
    f = io.BytesIO()
    peer.save(peer.export(nn.Linear(2, 2), (torch.ones(1, 2),)), f, extra_files={"a.txt": "moo"})
    f.seek(0)
    ex = {"a.txt": ""}
    peer.load(f, extra_files=ex)
    return ex


def save_not_ep(peer):
    with raises(TypeError):
        peer.save(nn.Linear(2, 2), io.BytesIO())


def load_bad(peer):
    with raises(Exception):
        peer.load(io.BytesIO(b"nope"))


def kinds_of_numbers(peer):
    """Floats and truth values among the results are no whole numbers."""

    def forward(self, x, n):
        total, first = x.sum().item(), x.long()[0].item()
        return total, total > 2, first, first > 3, n + 1

    sizes = {"x": None, "n": peer.Dim.DYNAMIC}
    program = peer.export(module_of(forward), (torch.ones(3), 4), dynamic_shapes=sizes)
    specs = (*program.graph_signature.input_specs, *program.graph_signature.output_specs)
    return [type(spec.arg).__name__ for spec in specs]


def verifiers(peer):
    program = peer.export(nn.ReLU(), (torch.ones(3),))
    return len(program.verifiers), program.verifiers[0] == program.verifier
