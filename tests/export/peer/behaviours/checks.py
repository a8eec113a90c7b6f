"""Checks of numbers at run time."""

import torch
from torch import nn

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, raises


def inline_constraints(peer):
    def f(self, x):
        b = x.item()
        torch._check_is_size(b)
        return torch.full((b, 1), 1)

    agrees_with_eager(peer, module_of(f), (torch.tensor([3]),))


def constraints_error(peer):
    def f(self, x):
        b = x.item()
        torch._check_is_size(b)
        torch._check(b >= 4)
        torch._check(b <= 5)
        torch._check(True)
        return torch.full((b, 1), 1)

    ep = peer.export(module_of(f), (torch.tensor([3]),))
    with raises(RuntimeError, r"Runtime assertion failed for expression u\d+ >= 4"):
        ep.module()(torch.tensor([3]))


def check_eq_commutes(peer):
    def f(s, a, b, c, y):
        z1, z2, z3 = a.item(), b.item(), c.item()
        torch._check(z1 == (z2 + z3))
        return y * 2 if z2 + z3 == z1 else y + 3

    peer.export(module_of(f), (torch.tensor(6), torch.tensor(3), torch.tensor(3), torch.randn(1)))

    def g(s, a, b, c, y):
        z1, z2, z3 = a.item(), b.item(), c.item()
        torch._check(z1 != (z2 + z3))
        return y * 2 if z2 + z3 == z1 else y + 3

    peer.export(module_of(g), (torch.tensor(6), torch.tensor(6), torch.tensor(6), torch.randn(1)))


def replaced_bindings(peer):
    def f(s, x, y, z):
        m, n = x.item(), y.item()
        torch._check(m == 4)
        torch._check(n == z.shape[0])
        return m + n + z

    ep = agrees_with_eager(
        peer,
        module_of(f),
        (torch.tensor(4), torch.tensor(5), torch.randn(5)),
        dynamic_shapes={"x": None, "y": None, "z": (peer.Dim("dx", max=16),)},
    )
    assert all(n.meta.get("unbacked_bindings") is None for n in ep.graph.nodes)


def data_dependent_error(peer):
    with raises(Exception, "Could not guard on data-dependent expression"):
        peer.export(
            module_of(lambda s, x: x.cos() if x.nonzero().shape[0] > 2 else x.sin()), (torch.tensor([2, 3, 5]),)
        )


def dd_basic(peer):
    def f(s, t):
        i = [t[k].item() for k in range(t.numel())]
        return torch.randn([i[0], i[1]]).view(i[0], i[2]) + 1

    peer.export(module_of(f), (torch.tensor([1, 4, 4], dtype=torch.int32),))


def dd_tensorsplit(peer):
    def f(s, x, o):
        rs, st = [], 0
        for part in torch.diff(o).tolist():
            rs.append(x.narrow(0, st, part))
            st += part
        return rs

    agrees_with_eager(peer, module_of(f), (torch.arange(10), torch.tensor([0, 2, 5, 7, 10])))


def constrain_eager(peer):
    def f(s, x, y):
        n = x.max().item()
        torch._check_is_size(n)
        return y + n

    agrees_with_eager(peer, module_of(f), (torch.randint(1, 2, (2, 2)), torch.randint(3, 5, (2, 3))))


def constrain_value(peer):
    def f(s, x, y):
        n = x.max().item()
        torch._check(n >= 2)
        torch._check(n <= 10)
        torch._check_is_size(n)
        return y + n

    ep = peer.export(module_of(f), (torch.randint(3, 4, (2, 2)), torch.randint(3, 5, (2, 3))))
    with raises(RuntimeError, r"Runtime assertion failed for expression u\d+ >= 2"):
        ep.module()(torch.randint(1, 2, (2, 2)), torch.randint(3, 5, (2, 3)))


def automatic_constrain(peer):
    ep = peer.export(
        module_of(lambda s, x, y: y.sum() + torch.ones(x.item(), 5).sum()), (torch.tensor(1), torch.ones(4, 5))
    )
    with raises(RuntimeError):
        ep.module()(torch.tensor(-1), torch.randn(4, 5))


def constrain_decomp(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.freq = torch.ones(5, 5)

        def forward(self, p):
            pos = p.item()
            torch._check_is_size(pos)
            torch._check(pos >= 0)
            torch._check(pos <= 4)
            return self.freq[pos] * self.freq[pos]

    ep = peer.export(A(), (torch.tensor(1),))
    d = ep.run_decompositions()
    return [e.graph_module.code.count("_assert_scalar.default") for e in (ep, d)]


def inline_complex(peer):
    def f(s, x):
        a = x.item()
        torch._check(a >= 4)
        torch._check(a <= 7)
        r = torch.randn((a, 4))
        return torch.cat((r.transpose(0, 1), torch.zeros(6, a)), 0)

    ep = peer.export(module_of(f), (torch.tensor([6]),))
    assert ep.module()(torch.tensor([5])).shape == (10, 5)
    with raises(RuntimeError, r"expression u\d+ <= 7"):
        ep.module()(torch.tensor([30]))
    return ep.graph_module.code.count("_assert_scalar.default")


def sym_or_and(peer):
    from torch.fx.experimental.symbolic_shapes import sym_and, sym_or

    def f(s, xs):
        a, b, c = xs.tolist()
        torch._check(sym_or(a == 2, a == 4, a == 6))
        torch._check(sym_and(b >= 4, b <= 8, c == 5))
        return a + b + c

    ep = peer.export(module_of(f), (torch.tensor([2, 6, 5]),))
    for x in ([2, 6, 5], [4, 7, 5], [6, 5, 5]):
        assert ep.module()(torch.tensor(x)) == sum(x)
    for x in ([3, 6, 5], [6, 6, 6]):
        with raises(RuntimeError):
            ep.module()(torch.tensor(x))


def redundant_assert(peer):
    def f(s, x):
        b = x.nonzero()
        torch._check(b.shape[0] >= 3)
        return b

    return peer.export(
        module_of(f), (torch.tensor([1, 1, 1, 0, 1]),), dynamic_shapes=((peer.Dim("dim"),),)
    ).graph_module.code.count("_assert_scalar.default")


def no_check_view(peer):
    ep = peer.export(module_of(lambda s, x: torch.randn(24).view(x.item(), 4)), (torch.tensor(6),))
    ep.module()(torch.tensor(6))
    with raises(RuntimeError):
        ep.module()(torch.tensor(5))


def redundant_asserts(peer):
    def f(s, x):
        y = x.item()
        torch._check_is_size(y)
        return torch.zeros(y)

    ep = peer.export(module_of(f), (torch.tensor([3]),))
    return [e.graph_module.code.count("_assert_scalar.default") for e in (ep, ep.run_decompositions())]


def runtime_assert_size(peer):
    def f(s, x, y):
        a = x.item()
        torch._check_is_size(a)
        torch._check(a <= y.size(0))
        return y[:a]

    ep = peer.export(
        module_of(f), (torch.tensor(5), torch.ones(10)), dynamic_shapes={"x": None, "y": {0: peer.Dim("t")}}
    )
    a = (torch.tensor(6), torch.randn(13))
    assert_close(ep.module()(*a), module_of(f)(*a))
