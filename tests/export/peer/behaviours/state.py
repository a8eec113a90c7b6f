"""State, constants and writes."""

import torch
from torch import nn

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of


def param_inplace(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.parameter = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            with torch.no_grad():
                self.parameter.div_(2)
            return x + self.parameter

    ep = peer.export(Foo(), (torch.rand(4, 4),)).run_decompositions()
    v = ep.graph_signature.parameters_to_mutate
    assert "parameter" in v.values()
    assert "div" in v
    return str(ep.graph).strip()


def colon_parameter(peer):
    class C(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("foo:bar", nn.Parameter(torch.ones(3, 3)))

        def forward(self, x):
            return x + getattr(self, "foo:bar")

    agrees_with_eager(peer, C(), (torch.randn(3, 3),))


def state_tensors(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.buf = nn.Buffer(torch.ones(2, 3), persistent=False)

        def forward(self, x):
            y = self.buf
            w1, w2, w3 = self.buf + 3, self.buf + 4, self.buf + 5
            self.buf = w1
            z = self.buf
            self.buf = w3
            return x + y + z + w2

    ep = peer.export(A(), (torch.randn(2, 3),), strict=False).run_decompositions({})
    assert list(ep.graph_signature.buffers_to_mutate.values()) == ["buf"]
    assert_close(ep.module()(torch.ones(2, 3) + 1), torch.ones(2, 3) * 12)


def state_list_registered(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            for i in range(2):
                self.register_buffer(f"buf_{i}", torch.ones(2, 3), persistent=False)

        def forward(self, x):
            y = self.buf_0 + self.buf_1
            self.buf_0 = torch.ones(2, 3) + 2
            self.buf_1 = torch.ones(2, 3) + 2
            return x + y + self.buf_0 + self.buf_1

    ep = peer.export(A(), (torch.randn(2, 3),)).run_decompositions({})
    assert list(ep.graph_signature.buffers_to_mutate.values()) == ["buf_0", "buf_1"]
    assert_close(ep.module()(torch.ones(2, 3) + 1), torch.ones(2, 3) * 10)


def state_primitives(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = 1
            self.y = {"k": 2}
            self.z = (3,)

        def forward(self, x):
            self.x = self.x + 4
            self.y["k"] = self.y["k"] + 5
            self.z = (self.z[0] + 6,)
            return x + self.x + self.y["k"] + self.z[0]

    ep = peer.export(A(), (torch.randn(2, 3),))
    assert_close(ep.module()(torch.zeros(2, 3)), torch.ones(2, 3) * 21)


def state_shape(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(10, 10)
            self.last = self.linear.weight.shape

        def forward(self, x):
            self.last = x.shape
            return self.linear(x)

    m = A()
    x = torch.randn(20, 10)
    assert_close(peer.export(m, (x,)).module()(x), m(x))


def dup_nonpersistent(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("buf", torch.randn(4), persistent=False)

        def forward(self, x):
            return x + self.buf

    class B(nn.Module):
        def __init__(self, a):
            super().__init__()
            self.foo = a

        def forward(self, x):
            return self.foo(x)

    class C(nn.Module):
        def __init__(self):
            super().__init__()
            a = A()
            self.b1, self.b2 = B(a), B(a)

        def forward(self, x):
            return self.b1(x) + self.b2(x)

    agrees_with_eager(peer, C(), (torch.randn(4),))


def training_mutation(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.buffer = nn.Buffer(torch.ones(4, 4))

        def forward(self, x):
            x.add_(5)
            self.buffer.add_(5)
            return x + self.buffer

    ep = peer.export(A(), (torch.ones(4, 4),))
    x = torch.ones(4, 4)
    y = torch.ones(4, 4)
    assert_close(ep.module()(x), A()(y))
    assert_close(x, y)


def device_to_mutation(peer):
    def f(s, x):
        y = x.to("cpu")
        y.add_(1)
        return y, x

    ep = peer.export(module_of(f), (torch.tensor(1),))
    x = torch.tensor(2)
    y, _ = ep.module()(x)
    assert x.item() == 3
    assert y is x
    ep = ep.run_decompositions({})
    y, _ = ep.module()(x)
    assert x.item() == 4
    assert y is x


def embedding_twice(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 4)

        def forward(self, x):
            return self.embed(x) + self.embed.weight[x]

    agrees_with_eager(peer, Foo(), (torch.tensor([0, 1, 2, 3]),))


def mutated_buffer(peer):
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.buf = nn.Buffer(torch.ones(1))

        def forward(self, x):
            self.buf.add_(1)
            return x.sum() + self.buf.sum()

    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.buf = nn.Buffer(torch.zeros(1))
            self.bar = B()

        def forward(self, x):
            self.buf.add_(1)
            self.bar.buf.add_(2)
            b = self.bar(x)
            self.bar.buf.add_(2)
            return b.sum() + self.buf.sum()

    g = peer.export(Foo(), (torch.ones(5, 5),)).module()
    e = Foo()
    for _ in range(2):
        assert_close(g(torch.ones(5, 5)), e(torch.ones(5, 5)))
        assert_close(dict(g.named_buffers()), dict(e.named_buffers()))
    assert not g.graph.eliminate_dead_code()
    assert_close(g(torch.ones(5, 5)), e(torch.ones(5, 5)))
    r = peer.export(g, (torch.ones(5, 5),))
    assert_close(r.module()(torch.ones(5, 5)), e(torch.ones(5, 5)))


def module_dict_key(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.mod = nn.Linear(10, 10)

        def forward(self, x, d):
            d = {m: d[n] for n, m in self.named_children()}
            return x + d[self.mod]

    agrees_with_eager(peer, A(), (torch.randn(10), {"mod": torch.randn(10)}))


def native_bn_input_mutation(peer):
    m = module_of(
        lambda s, i, w, b, rm, rv, t, mo, e, **k: torch.ops.aten.native_batch_norm(i, w, b, rm, rv, t, mo, e, **k)
    )

    def a():
        return (
            torch.arange(125.0).view(5, 5, 5).sin(),
            torch.ones(5),
            torch.ones(5),
            torch.zeros(5),
            torch.ones(5),
            True,
            0.5,
            0.6,
        )

    ep = peer.export(m, args=a())
    ep.run_decompositions()
    x, y = a(), a()
    assert_close(ep.module()(*x), m(*y))
    assert_close(x, y)


def input_mutation(peer):
    def f(s, x, y):
        x.view(3, 2, -1).add_(y)
        return x

    ep = peer.export(module_of(f), (torch.randn(12), torch.tensor(2)))
    a, b = torch.ones(12), torch.ones(12)
    assert_close(ep.module()(a, torch.tensor(2)), module_of(f)(b, torch.tensor(2)))
    assert_close(a, b)

    def g(s, x, y):
        x[0].mul_(y)
        return x

    ep = peer.export(
        module_of(g),
        ((torch.randn(12), torch.randn(3, 2)), 2.0),
        dynamic_shapes={"x": ({0: peer.Dim("dim")}, None), "y": None},
    )
    a = (torch.ones(5), torch.ones(3, 2))
    r = ep.module()(a, 2.0)
    assert r[0].tolist() == [2.0] * 5
    assert a[0].tolist() == [2.0] * 5


def input_mutation_renamed(peer):
    def f(s, x):
        x[:, :2, :] = x[:, :2, :] + 1
        return x

    m = peer.export(module_of(f), (torch.ones(4, 4, 4),)).module()
    for i, n in enumerate(m.graph.nodes):
        if n.op == "placeholder":
            n.name = f"arg0_{i + 1}"
    m.recompile()
    ep = peer.export(m, (torch.ones(4, 4, 4),))
    a = torch.randn(4, 4, 4)
    b = a.clone()
    assert_close(ep.module()(a), module_of(f)(b))


def buffer_mutation_signature(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("c", torch.zeros(1))
            self.register_buffer("n", torch.zeros(1), persistent=False)

        def forward(self, x):
            self.c.add_(1)
            self.n.add_(2)
            return x + self.c + self.n

    s = peer.export(A(), (torch.ones(1),)).run_decompositions({}).graph_signature
    return [
        dict(s.buffers_to_mutate),
        list(s.buffers),
        list(s.non_persistent_buffers),
        [o.kind.name for o in s.output_specs],
    ]


def user_input_mutation_signature(peer):
    def f(s, x, y):
        x.add_(1)
        y["k"].mul_(2)
        return x + y["k"]

    s = peer.export(module_of(f), (torch.ones(1), {"k": torch.ones(1)})).run_decompositions({}).graph_signature
    return [dict(s.user_inputs_to_mutate), list(s.user_inputs), list(s.user_outputs)]


def load_state_dict(peer):
    m = nn.Linear(2, 2)
    ep = peer.export(m, (torch.ones(1, 2),))
    g = ep.module()
    g.load_state_dict(nn.Linear(2, 2).state_dict())
    assert list(g.state_dict()) == ["weight", "bias"]
