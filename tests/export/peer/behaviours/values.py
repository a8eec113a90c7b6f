"""Numbers and sizes that only running gives."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, operators, raises


@torch.library.custom_op("precast_peer::indices3d", mutates_args=())
def _indices3d(t: torch.Tensor, x: torch.Tensor) -> tuple[int, int, int]:
    return tuple(x[i].item() for i in range(3))


@torch.library.register_fake("precast_peer::indices3d")
def _(t, x):
    sizes = tuple(torch.library.get_ctx().new_dynamic_size() for i in range(3))
    for i, z in enumerate(sizes):
        torch._check(z >= 0)
        torch._check(z <= t.shape[i])
    return sizes


def slice_unbacked(peer):
    def f(self, x, n):
        part = n.item()
        torch._check_is_size(part, max=x.size(1))
        return x.narrow(1, 0, part)

    agrees_with_eager(peer, module_of(f), (torch.randn(10, 7), torch.tensor(5)))


def bincount(peer):
    agrees_with_eager(
        peer, module_of(lambda s, x: x.bincount(torch.linspace(0, 1, steps=5))), (torch.randint(0, 8, (5,)),)
    )


def statically_known(peer):
    def f(self, x, y):
        return x[:, : y.shape[0] ** 2 - 3 * y.shape[0]]

    dynamic = peer.Dim.DYNAMIC
    ep = agrees_with_eager(
        peer,
        module_of(f),
        (torch.randn(4, 4), torch.randn(4, 4)),
        dynamic_shapes=((dynamic, dynamic), (dynamic, dynamic)),
    )
    return sorted(set(operators(ep)))


def unbacked_bincount(peer):
    def f(s, xs):
        a, b = xs.tolist()
        return torch.bincount(torch.ones(a, dtype=torch.int64), minlength=b)

    ep = peer.export(module_of(f), (torch.tensor([20, 10]),))
    for x in ([20, 10], [5, 10]):
        assert_close(ep.module()(torch.tensor(x)), module_of(f)(torch.tensor(x)))


def masked_select(peer):
    ep = agrees_with_eager(
        peer,
        module_of(lambda s, x: torch.masked_select(x, x.ge(0.5))),
        (torch.randn(3, 4, 5),),
        dynamic_shapes={"x": {0: peer.Dim("a", max=100), 1: peer.Dim("b", max=7)}},
    )
    u = [v.upper for v in ep.range_constraints.values()]
    assert max(u) == 3500


def nonzero_dynamic(peer):
    for t in (True, False):
        ep = agrees_with_eager(
            peer,
            module_of(lambda s, x, as_tuple: torch.nonzero(x, as_tuple=as_tuple)),
            (torch.randn(3, 4, 5), t),
            dynamic_shapes={"x": {0: peer.Dim("a", max=100), 1: peer.Dim("b", max=7)}, "as_tuple": None},
        )
        u = [v.upper for v in ep.range_constraints.values()]
        assert max(u) == 3500
    ep = peer.export(
        module_of(lambda s, x, as_tuple: torch.nonzero(x, as_tuple=as_tuple)),
        (torch.tensor(10), False),
        dynamic_shapes={"x": None, "as_tuple": None},
    )
    assert all(v.upper == 1 for v in ep.range_constraints.values())


def nonzero_static(peer):
    def f(s, e, mask, exp):
        i = torch.nonzero_static(mask, size=exp.shape[0])
        return e[i.chunk(chunks=mask.dim(), dim=1)].squeeze() * 2

    b = peer.Dim("b")
    ep = agrees_with_eager(
        peer,
        module_of(f),
        (torch.randn(5, 5), torch.ones(5, 5, dtype=torch.bool), torch.randn(25)),
        dynamic_shapes={"e": (b, None), "mask": (b, None), "exp": (peer.Dim("n", max=100),)},
    )
    a = (torch.randn(6, 5), torch.ones(6, 5, dtype=torch.bool), torch.randn(30))
    assert_close(ep.module()(*a), module_of(f)(*a))


def where_decomp(peer):
    peer.export(
        module_of(lambda s, x: torch.ops.aten.where.default(x > 0)),
        (torch.randn(2, 3),),
        dynamic_shapes=({0: peer.Dim.AUTO, 1: peer.Dim.AUTO},),
    ).run_decompositions({})


def items(peer):
    for t in (torch.tensor([1], dtype=torch.int), torch.tensor([1], dtype=torch.bool), torch.tensor([3.14])):
        assert peer.export(module_of(lambda s, t: t.item()), (t,)).module()(t) == t.item()


def unbacked_cond(peer):
    def f(s, a):
        z = a.nonzero()
        return torch.cond(z.size(0) > 3, lambda x: (x + 1).sum(), lambda x: (x + 3).sum(), (z,)) * 2

    agrees_with_eager(peer, module_of(f), (torch.randn(7),), strict=False)


def unbacked_cond_passthrough(peer):
    def f(s, a):
        z = a.nonzero()
        return torch.cond(z.size(0) > 3, lambda x: x + 1, lambda x: x + 3, (z,)) * 2

    agrees_with_eager(peer, module_of(f), (torch.randn(7),), strict=False)


def cond_unbacked_inside(peer):
    def f(s, a, b1, b2, c):
        return torch.cond(a, lambda x: x * b1.item(), lambda x: x * b2.item(), (c,)) * 2

    peer.export(
        module_of(f), (torch.tensor(True), torch.tensor([4]), torch.tensor([4]), torch.randn(10, requires_grad=True))
    )


def unbacked_unsqueeze(peer):
    def f(s, xs):
        a, b = xs.tolist()
        return torch.zeros(1, a + b).contiguous().unsqueeze(-1)

    ep = peer.export(module_of(f), (torch.tensor([5, 6]),))
    assert ep.module()(torch.tensor([1, 2])).shape == (1, 3, 1)


def unbacked_linear_ln(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(7, 4)
            self.ln = nn.LayerNorm(7)

        def forward(self, x, mask):
            v = x.masked_select(mask).view(-1, 7)
            return self.linear(v), self.ln(v)

    agrees_with_eager(peer, A(), (torch.randn(6, 7), torch.tensor([[True]] * 3 + [[False]] * 3)))


def ln_unbacked_shape(peer):
    def f(s, n, w, b):
        u = n.item()
        return F.layer_norm(input=torch.ones(2, u), normalized_shape=(u,), weight=w, bias=b)

    agrees_with_eager(
        peer, module_of(f), (torch.scalar_tensor(16, dtype=torch.int32), torch.randn(16), torch.randn(16))
    )


def unbacked_3d_matmul(peer):
    def f(s, x, r):
        u = r.item()
        return torch.matmul(x.unsqueeze(1).expand(x.size(0), u // 2, x.size(-1)), torch.ones(3))

    agrees_with_eager(peer, module_of(f), (torch.randn(4, 3), torch.scalar_tensor(2, dtype=torch.int)))


@torch.library.custom_op("precast_peer::foo_unbacked", mutates_args={})
def _foo_unbacked(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a[: b.item()].clone()


@_foo_unbacked.register_fake
def _(a, b):
    size = torch.library.get_ctx().new_dynamic_size(min=0, max=len(a) // 10) * 10
    return torch.empty(size, a.shape[1], dtype=a.dtype)


def unbacked_bindings(peer):
    ep = peer.export(
        module_of(lambda s, a, b: torch.ops.precast_peer.foo_unbacked(a, b)), (torch.randn(100, 4), torch.tensor(10))
    )
    n = next(n for n in ep.graph.nodes if n.name == "foo_unbacked")
    ub = n.meta["unbacked_bindings"]
    assert len(ub) == 1
    path = next(iter(ub.values()))
    assert len(path) == 3
    assert type(path[2]).__name__ == "DivideByKey"


def unbacked_infer_size(peer):
    def f(s, x):
        u = x.item()
        torch._check_is_size(u)
        t = torch.empty(u - 1)
        return t + t

    ep = peer.export(module_of(f), (torch.tensor([5]),))
    ep.module()(torch.tensor([5]))
    ep.module()(torch.tensor([1]))


def unbacked_pad(peer):
    def f(s, xs, pad):
        return F.pad(torch.ones(*xs.tolist()), tuple(pad.tolist()))

    ep = peer.export(module_of(f), (torch.tensor([64, 64, 64]), torch.tensor([8, -8, 4, 0])))
    a = (torch.tensor([64, 64, 64]), torch.tensor([-5, 9, 0, 8]))
    assert ep.module()(*a).shape == module_of(f)(*a).shape


def unbacked_view(peer):
    def f(s, x):
        u = x.item()
        return torch.empty(5, u).view(u, 5)

    ep = peer.export(module_of(f), (torch.tensor([9]),))
    assert ep.module()(torch.tensor([8])).size(0) == 8

    def g(s, xs):
        a, b = xs.tolist()
        return torch.zeros(a).reshape(b)

    ep = peer.export(module_of(g), (torch.tensor([4, 4]),))
    assert ep.module()(torch.tensor([5, 5])).size(0) == 5


def tolist(peer):
    assert peer.export(module_of(lambda s, x: x.tolist()), (torch.ones(3, dtype=torch.int),)).module()(
        torch.tensor([1, 2, 3], dtype=torch.int)
    ) == [1, 2, 3]


def tolist_other_dtype(peer):
    assert peer.export(module_of(lambda s, x: x.tolist()), (torch.ones(3, dtype=torch.int),)).module()(
        torch.tensor([1, 2, 3])
    ) == [1, 2, 3]


def if_functional(peer):
    def f(s, x):
        z = x + 4
        z.add_(4)
        y = z.view(x.shape)
        return x.cos() + y.cos()

    return operators(peer.export(module_of(f), (torch.tensor([2, 3, 5]),)).run_decompositions({}))


def max_onnx(peer):
    def f(s, x, y):
        z = torch.zeros((max(x.shape[0], y.shape[0]), max(x.shape[1], y.shape[1])), dtype=x.dtype)
        z[: x.shape[0], : x.shape[1]] = x
        z[: y.shape[0], : y.shape[1]] += y
        return z

    dynamic = peer.Dim.DYNAMIC
    agrees_with_eager(
        peer,
        module_of(f),
        (torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2) * 10),
        dynamic_shapes=({0: dynamic, 1: dynamic}, {0: dynamic, 1: dynamic}),
        strict=True,
    )


def max_nonstrict(peer):
    s1 = str(peer.export(module_of(lambda s, x: torch.ones(max(x.item(), 1024))), (torch.tensor(4),)).graph)
    assert s1.count("torch.sym_max") == 1
    s2 = str(
        peer.export(module_of(lambda s, x: torch.ones(max(x, x)) + torch.ones(min(x, x))), (torch.tensor(4),)).graph
    )
    assert s2.count("aten.maximum.default") == 1
    assert s2.count("aten.minimum.default") == 1
    s3 = str(
        peer.export(module_of(lambda s, x: max([x, x]) + min([x, x]) + max(x, 5) + min(x, 3)), (torch.tensor(4),)).graph
    )
    assert s3.count("aten.clamp.default") == 2
    s4 = str(
        peer.export(
            module_of(
                lambda s, x, y: max([x.shape[0], y.shape[0], x.shape[0]]) + min([x.shape[0], y.shape[0], x.shape[0]])
            ),
            (torch.randn(4, 4), torch.randn(4, 4)),
            dynamic_shapes={"x": {0: peer.Dim.AUTO}, "y": {0: peer.Dim.AUTO}},
        ).graph
    )
    assert s4.count("torch.sym_max") == 1
    with raises(RuntimeError):
        peer.export(
            module_of(lambda s, x: max(x, x.shape[0])), (torch.randn(4, 4),), dynamic_shapes={"x": {0: peer.Dim.AUTO}}
        )


def math_pow(peer):
    g = str(
        peer.export(
            module_of(lambda s, x, y: y * math.pow(min(x.item(), 10), 10)), (torch.tensor(5), torch.randn(5))
        ).graph
    )
    assert g.count("torch.sym_min") == 1
    assert "pow" in g


def unbacked_slice(peer):
    def f(s, scores, thr, topk, results=None):
        m = scores > thr
        scores = scores[m]
        v = torch.nonzero(m).to(scores.device)
        n = torch.minimum(topk, torch.tensor(v.shape[0])).item()
        torch._check_is_size(n)
        torch._check(scores.shape[0] >= n)
        scores, i = scores.sort(descending=True)
        scores = scores[:n]
        k, part = v[i[:n]].unbind(dim=1)
        return scores, part, k

    agrees_with_eager(
        peer,
        module_of(f),
        (
            torch.tensor([[0.1, 0.3, 0.2], [0.12, 0.7, 0.9], [0.02, 0.8, 0.08], [0.4, 0.1, 0.08]]),
            0.15,
            torch.tensor(4),
            {"b": torch.rand(4, 2)},
        ),
    )


def multidim_slicing(peer):
    def f(s, x, y):
        b = x.item()
        torch._check(b >= 0)
        torch._check(b < y.shape[0])
        return y[0, b]

    agrees_with_eager(peer, module_of(f), (torch.tensor(4), torch.ones(10, 10)))


def more_slicing(peer):
    t, x = torch.randn(4, 5, 6), torch.tensor([2, 3, 4])
    for g in (
        lambda t, i, j, k: t[i, j, k],
        lambda t, i, j, k: t[:i, :j, :k],
        lambda t, i, j, k: t[:i, j, :k],
        lambda t, i, j, k: t[None, i, None],
        lambda t, i, j, k: t[:i, None, :j, None, None, :k],
        lambda t, i, j, k: t[None, ..., None, j],
        lambda t, i, j, k: t[:i, None, ..., None, j],
    ):
        agrees_with_eager(peer, module_of(lambda s, t, x, g=g: g(t, *_indices3d(t, x))), (t, x))


def unbacked_noncontig(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(32, 64)

        def forward(self, x):
            n = x.item()
            return self.lin(torch.empty(n).view(1, -1, 32))

    ep = peer.export(A(), (torch.tensor([128]),))
    assert ep.module()(torch.tensor([512])).shape == (1, 16, 64)


def multinomial(peer):
    m = module_of(lambda s, x, y: torch.multinomial(x, y.shape[0]))
    dynamic = peer.Dim.DYNAMIC
    ep = peer.export(m, (torch.tensor([0, 10, 3, 0.0]), torch.ones(2)), dynamic_shapes=((dynamic,), (dynamic,)))
    assert ep.module()(torch.tensor([0, 10, 3, 7, 6, 0.0]), torch.ones(3)).shape == (3,)
    with raises(RuntimeError):
        ep.module()(torch.tensor([0, 10, 3, 0.0]), torch.ones(5))


def no_inputs(peer):
    a, _b = peer.export(module_of(lambda s: (torch.randn(3, 4), torch.randn(3, 4))), ()).module()()
    assert a.shape == (3, 4)
    assert peer.export(module_of(lambda s: (torch.full((torch.full((), 11).item(),), 0.0),)), ()).module()()[
        0
    ].shape == (11,)


def pad_sequence(peer):
    ep = peer.export(
        module_of(lambda s, x, y, z: torch._C._nn.pad_sequence([x, y, z])),
        (torch.randn(5, 2), torch.randn(4, 2), torch.randn(3, 2)),
        dynamic_shapes={"x": {0: peer.Dim("b")}, "y": {0: peer.Dim("y")}, "z": {0: peer.Dim("z")}},
    )
    a = (torch.randn(5, 2), torch.randn(4, 2), torch.randn(3, 2))
    assert_close(ep.module()(*a), torch._C._nn.pad_sequence(list(a)))
    a = (torch.randn(7, 2), torch.randn(2, 2), torch.randn(4, 2))
    assert_close(ep.module()(*a), torch._C._nn.pad_sequence(list(a)))


def pad_sequence_1(peer):
    agrees_with_eager(
        peer,
        module_of(lambda s, x: torch._C._nn.pad_sequence([x])),
        (torch.randn(3, 2),),
        dynamic_shapes={"x": {0: peer.Dim("b")}},
    )


def sym_sqrt(peer):
    assert (
        "_sym_sqrt"
        in peer.export(
            module_of(lambda s, x: x / torch.sym_sqrt(x.shape[0])),
            (torch.ones(16, 4),),
            dynamic_shapes={"x": {0: peer.Dim("dim")}},
        ).graph_module.code
    )
