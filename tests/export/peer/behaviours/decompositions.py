"""Decompositions."""

import torch
from torch import nn
from torch.nn import functional as F

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, operators, raises


def torch_fn(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.relu = nn.ReLU()

        def forward(self, x):
            x = self.linear(x)
            x = self.linear(x)
            x = self.relu(x)
            return x + x

    return [
        n.meta.get("torch_fn")
        for n in peer.export(A(), (torch.randn(3, 3),)).run_decompositions().graph.nodes
        if n.op == "call_function"
    ]


def torch_fn2(peer):
    def f(s, x, w, b):
        return torch.add(F.relu(F.linear(x, w, b)), x)

    return [
        n.meta.get("torch_fn")
        for n in peer.export(module_of(f), (torch.randn(3, 3), torch.randn(3, 3), torch.randn(3)))
        .run_decompositions()
        .graph.nodes
        if n.op == "call_function"
    ]


def preserve_linear_not_custom(peer):
    t = peer.default_decompositions()
    del t[torch.ops.aten.linear.default]
    with torch.library._scoped_library("precast_peer_library", "FRAGMENT") as lib:
        lib.define("foo123(Tensor x) -> Tensor")
        lib.impl("foo123", lambda x: x.sin(), "CompositeImplicitAutograd")

        class A(nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = nn.Linear(4, 4)

            def forward(self, x):
                return torch.ops.precast_peer_library.foo123(self.linear(x))

        return str(peer.export(A(), (torch.randn(4, 4),)).run_decompositions(t).graph_module.code)


def preserve_linear_chunk(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x):
            return torch.ops.aten.chunk.default(self.linear(x), 3, 0)

    t = peer.default_decompositions()
    del t[torch.ops.aten.linear.default]
    return str(peer.export(A(), (torch.randn(3, 3),)).run_decompositions(t).graph_module.code)


def table_pop(peer):
    with torch.library._scoped_library("precast_peer_library", "FRAGMENT") as lib:
        for n in ("foo123", "foo456"):
            lib.define(f"{n}(Tensor x) -> Tensor")
            lib.impl(n, lambda x: x.sin(), "CompositeImplicitAutograd")
        t = peer.default_decompositions()
        assert t.pop(torch.ops.precast_peer_library.foo123.default) is not None
        with raises(KeyError):
            t.pop(torch.ops.precast_peer_library.foo123.default)
        assert t.pop(torch.ops.precast_peer_library.foo123.default, "HELLO") == "HELLO"
        a = {k for k, v in t.items()}
        assert torch.ops.precast_peer_library.foo123.default not in a
        assert torch.ops.precast_peer_library.foo456.default in a


def keep_sum(peer):
    ep = peer.export(module_of(lambda s, x: x.sin() + x.sum()), (torch.ones(3, 3),))
    t = peer.default_decompositions()
    del t[torch.ops.aten.sum.default]
    return [ep.run_decompositions(t).graph_module.code, ep.run_decompositions().graph_module.code]


def run_decomp_code(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = nn.Buffer(torch.ones(2, 2))
            self.linear = nn.Linear(2, 2)

        def forward(self, x):
            self.buffer.add_(5)
            return self.linear(x) + self.buffer.sum()

    return peer.export(A(), (torch.ones(2, 2),)).run_decompositions().graph_module.code


def lift_fresh(peer):
    return operators(
        peer.export(module_of(lambda s, x: torch.ops.aten.lift_fresh_copy(x)), (torch.ones(6, 4),)).run_decompositions(
            {}
        )
    )


def decomps_simple(peer):
    ep = peer.export(nn.Linear(10, 1), (torch.randn(5, 10),))
    sd = ep.state_dict
    e = ep.run_decompositions()
    assert id(sd) == id(ep.state_dict)
    return operators(e)


def decomp_custom(peer):
    ep = peer.export(nn.Linear(10, 1), (torch.randn(5, 10),))
    t = peer.default_decompositions()
    t[torch.ops.aten.linear.default] = lambda x, w, b: x + b
    return operators(ep.run_decompositions(t))


def div_mode(peer):
    agrees_with_eager(
        peer, module_of(lambda s, x: torch.ops.aten.div.Tensor_mode(x, 2, rounding_mode="floor")), (torch.randn(4, 3),)
    )


def scatter_add(peer):
    m = module_of(lambda s, t, d, i, src: torch.ops.aten.scatter_add(t, d, i, src))
    a = (torch.randn(10, 5), -1, torch.tensor([[2, 4, 3, 1, 0]] * 5), torch.randn(5, 5))
    assert_close(peer.export(m, a).run_decompositions().module()(*a), m(*a))


def custom_op_mutable(peer):
    with torch.library._scoped_library("precast_peer_writes", "FRAGMENT") as lib:
        lib.define("foo(Tensor(a!) x, Tensor b) -> Tensor")
        lib.impl("foo", lambda x, b: (x.add_(1), x + b)[1], "CPU")
        torch.library.register_fake("precast_peer_writes::foo", lambda x, b: x + b, lib=lib)
        m = module_of(lambda s, x, b: torch.ops.precast_peer_writes.foo(x, b) + x)
        ep = peer.export(m, (torch.ones(3), torch.ones(3)))
        x, y = torch.ones(3), torch.ones(3)
        assert_close(ep.module()(x, torch.ones(3)), m(y, torch.ones(3)))
        assert_close(x, y)
        d = ep.run_decompositions({})
        x = torch.ones(3)
        assert_close(d.module()(x, torch.ones(3)), torch.full((3,), 5.0))
        return [o for o in operators(d) if "functionalized" in o or "add" in o]
