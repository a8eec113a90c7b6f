"""Control flow."""

import re

import torch
from functorch.experimental.control_flow import map as fmap
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of

_m1 = nn.Module()
_m1.register_parameter("param", nn.Parameter(torch.tensor(5), requires_grad=False))
_m1.buffer = nn.Buffer(torch.tensor(7))
_m1 = nn.Module()
_m1.register_parameter("param", nn.Parameter(torch.tensor(5), requires_grad=False))
_m1.buffer = nn.Buffer(torch.tensor(7))
_m1 = nn.Module()
_m1.register_parameter("param", nn.Parameter(torch.tensor(5), requires_grad=False))
_m1.buffer = nn.Buffer(torch.tensor(7))


def vmap_to_assert(peer):
    def f(self, x, y):
        def g(x, y):
            return ((x * y).to("cpu", memory_format=torch.channels_last) + 1).sum(dim=0)

        return torch.vmap(g)(x, y).sum(dim=0)

    agrees_with_eager(peer, module_of(f), (torch.rand(4, 4, 4, 4), torch.rand(4, 4, 4, 4)))


def cond_same_int(peer):
    agrees_with_eager(
        peer, module_of(lambda s, x: x[torch.cond(x.sum() > 3, lambda: 0, lambda: 0, ())]), (torch.randn(3, 3),)
    )


def cond_symint_closure(peer):
    m = module_of(lambda s, x, t, g: torch.cond(t == 1, lambda: x + g, lambda: x * g, ()))
    a = (torch.randn(2), 0, 2)
    ep = peer.export(m, a, dynamic_shapes=(None, peer.Dim.DYNAMIC, peer.Dim.DYNAMIC))
    assert_close(ep.module()(*a), m(*a))
    assert_close(ep.module()(a[0], 1, 5), m(a[0], 1, 5))


def cond_int_closure(peer):
    def f(s, a, x):
        return torch.cond(a, lambda x: x * s.num, lambda x: x + s.num, (x,)) * 2

    agrees_with_eager(peer, module_of(f, num=4), (torch.tensor(True), torch.randn(10)))


def while_idx(peer):
    from torch._higher_order_ops.while_loop import while_loop

    def f(s, x, y0):
        out = torch.zeros_like(x)

        def body(idx, out, y0):
            i = idx.item()
            torch._check_is_size(i, max=x.size(0) - 1)
            y0 = x[i] + y0
            out = out.clone()
            out[i] = y0
            return idx + 1, out, y0

        return while_loop(lambda idx, out, y0: idx < out.size(0), body, [torch.tensor(0), out, y0])[1]

    agrees_with_eager(peer, module_of(f), (torch.randn(16, 8), torch.randn(8)))


def setgrad_sizes(peer):
    def f(s, x):
        a = x.shape[0] + 2
        b = a + 2
        with torch.no_grad():
            y = a * 4
        return b, y

    ep = peer.export(module_of(f), (torch.randn(6),), dynamic_shapes={"x": (peer.Dim("dx"),)})
    assert ep.module()(torch.randn(7)) == (11, 36)


def cond_torch_fn(peer):
    class S(nn.Module):
        def foo(self, x):
            return x.cos()

        def forward(self, x):
            return self.foo(x)

    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.subm = S()

        def bar(self, x):
            return x.sin()

        def forward(self, x):
            return torch.cond(x.sum() <= 2, self.subm.forward, self.bar, [x])

    gm = peer.export(A().eval(), (torch.randn(1, 3, 3, 3),)).module()
    return [
        n.meta.get("torch_fn")
        for m in gm.modules()
        if hasattr(m, "graph")
        for n in m.graph.nodes
        if n.name in ("sin", "cos")
    ]


def set_grad_empty(peer):
    def f(s, x):
        with torch.no_grad():
            return x + 1, None

    ep = peer.export(module_of(f), (torch.ones(3, 3),))
    x = torch.rand(3, 3)
    assert_close(ep.module()(x)[0], x + 1)


def set_grad_side_effect(peer):
    def f(s, x):
        torch._C._set_grad_enabled(False)
        return x.sum()

    peer.export(module_of(f), (torch.rand(4, 4),))
    assert torch.is_grad_enabled()


def map(peer):
    agrees_with_eager(
        peer,
        module_of(lambda s, xs, y, z: fmap(lambda x, y, z: x + y + z, xs, y, z)),
        (torch.ones(6, 4), torch.tensor(5), torch.tensor(4)),
    )


def while_simple(peer):
    agrees_with_eager(
        peer,
        module_of(
            lambda s, ci, a, b: while_loop(lambda i, x, y: i > 0, lambda i, x, y: (i - 1, x + y, y - x), [ci, a, b])
        ),
        (torch.tensor(1), torch.randn(10, 20), torch.randn(10, 20)),
    )


def while_index(peer):
    def f(s, x):
        def body(idx, acc):
            i = idx.item()
            torch._check_is_size(i, max=x.size(0) - 1)
            return idx + 1, acc + x[i]

        return while_loop(
            lambda idx, acc: idx.item() < x.size(0),
            body,
            [torch.full((), 0, dtype=torch.int64), torch.zeros(x.size(1))],
        )[1]

    x = torch.randn(8, 4)
    assert_close(peer.export(module_of(f), (x,)).module()(x), x.sum(0))


def cond_symbool(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = nn.Buffer(torch.ones(6, 4))

        def forward(self):
            return self.buffer.cos()

    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = A()

        def forward(self, x):
            return torch.cond(x.shape[0] > 4, lambda x: x.cos() + self.a().sum(), lambda x: x.sin(), [x])

    ep = peer.export(Foo(), (torch.ones(6, 4),), dynamic_shapes={"x": {0: peer.Dim("dim0", min=3)}})
    assert_close(ep.module()(torch.ones(3, 4)), Foo()(torch.ones(3, 4)))
    n = next(n for n in ep.graph.nodes if isinstance(n.target, torch._ops.HigherOrderOperator))
    return [
        str(torch._library.utils.hop_schema_from_fx_node(n)),
        re.sub(r"sym_size(_int)?(_\d)?", "SYM", ep.graph_module.code),
    ]


def cond_buffers(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("param", nn.Parameter(torch.ones(2, 3), requires_grad=False))
            self.buffer = nn.Buffer(torch.ones(2, 3) + 1)

        def forward(self, x):
            return torch.cond(x.shape[0] == 4, lambda x: x + self.param, lambda x: x + self.buffer, [x])

    agrees_with_eager(peer, A(), (torch.ones(2, 3),))


def scan_pytree(peer):
    def add(c, a):
        return c + c, (a[0]["moo"] + 1, a[0]["moo2"] + 1)

    m = module_of(lambda s, init, acc: scan(add, init, acc))
    a = (torch.ones(3), ({"moo": torch.ones(3), "moo2": torch.ones(3)},))
    agrees_with_eager(peer, m, a)


def map_buffers(peer):
    def g(x, y):
        z = x + y + _m1.param + _m1.buffer
        z.add_(4)
        return z

    m = module_of(lambda s, xs, y: fmap(g, xs, y))
    agrees_with_eager(peer, m, (torch.ones(3, 2), torch.tensor(3)))


def names_cond(peer):
    m = module_of(lambda s, x, p: torch.cond(p.sum() > 2, lambda x: x + s.w, lambda x: x - 1, (x,)), w=torch.ones(3))
    ep = peer.export(m, (torch.ones(3), torch.ones(2)))
    return [
        [n.name for n in g.graph.nodes if n.op == "placeholder"]
        for g in (ep.graph_module, ep.graph_module.true_graph_0, ep.graph_module.false_graph_0)
    ]


def autocast(peer):
    def f(s, x):
        with torch.autocast("cpu", dtype=torch.int8, enabled=False):
            return x.sum()

    return [
        str(n.target) for n in peer.export(module_of(f), (torch.rand(4, 4),)).graph.nodes if n.op == "call_function"
    ]
