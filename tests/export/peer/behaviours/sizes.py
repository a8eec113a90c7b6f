"""Dynamic sizes."""

import dataclasses

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, raises


@dataclasses.dataclass
class Inp1:
    x: torch.Tensor
    y: list
    z: dict


@dataclasses.dataclass
class D4:
    b: bool
    i: int
    f: float
    t: torch.Tensor


pytree.register_dataclass(Inp1)
pytree.register_dataclass(D4)


def not_in_range(peer):
    with raises(Exception, "not in range|range"):
        peer.export(module_of(lambda s, x: x + 1), (torch.zeros(3),), dynamic_shapes={"x": {0: peer.Dim("d", min=6)}})


def slice_maxsize(peer):
    peer.export(
        module_of(lambda s, *args: torch.ops.aten.slice.Tensor(*args)),
        (torch.rand(10, 3, 4), 0, 0, 9223372036854775807),
        dynamic_shapes=(({0: peer.Dim("dim")}, None, None, None),),
    )


def static_default(peer):
    peer.export(module_of(lambda s, x: x + 1 if x.shape[0] == 4 else x), (torch.rand(4, 5),))


def symint_output(peer):
    def f(self, x):
        z, y = x.size()
        return z + y + x[0], z

    a, b = peer.dims("a", "b")
    agrees_with_eager(peer, module_of(f), (torch.ones(2, 3),), dynamic_shapes={"x": (a, b)})


def int_shape_specialization(peer):
    def f(self, x):
        return F.interpolate(x, size=(int(x.shape[-2] / 1), int(x.shape[-1] / 1)), mode="bilinear")

    with raises(Exception):
        peer.export(
            module_of(f), (torch.rand(1, 3, 28, 28),), dynamic_shapes={"x": {2: peer.Dim.DYNAMIC, 3: peer.Dim.DYNAMIC}}
        )


def conv_dynamic(peer):
    class C(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(3, 8, 3, padding=1)
            self.relu = nn.ReLU()
            self.pool = nn.MaxPool2d(3)

        def forward(self, x, y):
            a = self.conv(x)
            a.add_(y)
            return self.pool(self.relu(a))

    m = C()
    ep = peer.export(
        m,
        args=(torch.randn(2, 3, 16, 16), torch.ones(2, 8, 16, 16)),
        dynamic_shapes={"x": {0: peer.Dim("b")}, "y": {0: peer.Dim("b")}},
    )
    for n in (5, 1, 3):
        a = (torch.randn(n, 3, 16, 16), torch.ones(n, 8, 16, 16))
        assert_close(ep.module()(*a), m(*a))


def native_mha(peer):
    q = torch.rand(4, 8, 16)
    qkv, proj = nn.Linear(16, 48), nn.Linear(16, 16)

    def f(s, q, k, v, mask):
        return torch._native_multi_head_attention(
            q,
            k,
            v,
            16,
            4,
            s.qkv.weight,
            s.qkv.bias,
            s.proj.weight,
            s.proj.bias,
            mask,
            need_weights=False,
            average_attn_weights=False,
            mask_type=1,
        )

    agrees_with_eager(
        peer,
        module_of(f, qkv=qkv, proj=proj),
        (q, q, q, None),
        dynamic_shapes={
            "q": {0: peer.Dim("a", max=1024)},
            "k": {0: peer.Dim("b", max=1024)},
            "v": {0: peer.Dim("c", max=1024)},
            "mask": None,
        },
    )


def nonstrict_dynamic(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.u = nn.Buffer(torch.ones(1))
            self.v = nn.Buffer(torch.ones(1))

        def forward(self, x, ys, zs, c):
            y = ys[0] + ys[1] + zs["a"] + zs["b"]
            self.v.add_(3)
            w = self.u - self.v
            if x.shape[0] < 3 and c.shape[0] != 4:
                return x + w, x + y
            return x - w, x - y

    o = torch.ones

    def mk(n, k, c):
        return (o(n), [o(k), o(k)], {"a": o(k), "b": o(k)}, o(c))

    d = peer.Dim("dim", min=3)
    ds = ({0: d}, [{0: d}, {0: d}], {"a": {0: d}, "b": {0: d}}, None)
    ep = peer.export(Foo(), mk(5, 5, 4), dynamic_shapes=ds)
    with raises((AssertionError, RuntimeError, ValueError)):
        ep.module()(*mk(6, 5, 4))
    with raises((AssertionError, RuntimeError, ValueError)):
        ep.module()(*mk(5, 5, 6))
    ep.module()(*mk(7, 7, 4))
    with raises(Exception):
        peer.export(Foo(), mk(2, 2, 4), dynamic_shapes=ds)


def auto_and_dim(peer):
    ep = peer.export(
        module_of(lambda s, x, y: x - y),
        (torch.randn(4, 4), torch.randn(4, 4)),
        dynamic_shapes={"x": (peer.Dim.AUTO, peer.Dim("d1", min=3)), "y": (peer.Dim("d0", max=8), peer.Dim.DYNAMIC)},
    )
    x, y = [n for n in ep.graph.nodes if n.op == "placeholder"]
    s0, s1 = x.meta["val"].shape
    assert s0 == y.meta["val"].shape[0]
    assert s1 == y.meta["val"].shape[1]
    assert [ep.range_constraints[s0.node.expr].upper, ep.range_constraints[s1.node.expr].lower] == [8, 3]
    dx = peer.Dim("dx", min=2, max=10)
    ep = peer.export(
        module_of(lambda s, x, y, z: x + y[1::3] + z),
        (torch.randn(4), torch.randn(13), torch.randn(4)),
        dynamic_shapes={"x": (dx,), "y": (3 * dx + 1,), "z": (peer.Dim.AUTO,)},
    )
    x, y, z = [n for n in ep.graph.nodes if n.op == "placeholder"]
    s = x.meta["val"].shape[0]
    assert s == z.meta["val"].shape[0]
    assert y.meta["val"].shape[0].node.expr.free_symbols == {s.node.expr}
    with raises(Exception):
        peer.export(
            module_of(lambda s, x, y: x - y),
            (torch.randn(4), torch.randn(4)),
            dynamic_shapes={"x": (peer.Dim.STATIC,), "y": (peer.Dim("dy"),)},
        )


def masked_fill_slice(peer):
    def f(s, m, v):
        m = m.clone()
        m[:, :, :, : v.shape[-1]] = v
        return m

    ep = agrees_with_eager(
        peer,
        module_of(f),
        (torch.randn(2, 2, 3, 4), torch.randn(2, 2, 3, 3)),
        dynamic_shapes={"m": {3: peer.Dim("M")}, "v": {3: peer.Dim("N")}},
    )
    ep.run_decompositions()


def hint_ranges(peer):
    ep = peer.export(
        module_of(lambda s, x, y: x + y),
        (torch.randn(6, 4), torch.randn(6, 4)),
        dynamic_shapes={
            "x": (peer.Dim.AUTO(min=4), peer.Dim.AUTO),
            "y": (peer.Dim.DYNAMIC(max=16), peer.Dim.AUTO(max=32)),
        },
    )
    ep.module()(torch.randn(8, 5), torch.randn(8, 5))
    for n, k in ((3, 5), (17, 5), (9, 33)):
        with raises((AssertionError, RuntimeError, ValueError)):
            ep.module()(torch.randn(n, k), torch.randn(n, k))


def hint_violations(peer):
    def f(s, xs):
        x, y = xs["data"][0]
        assert y.shape[0] <= 32
        return x[6:], y + 2

    for who, spec in ((0, lambda: peer.Dim.DYNAMIC(max=5)), (1, lambda: peer.Dim.AUTO(min=48, max=62))):
        x, y = torch.randn(8), torch.randn(8)
        sc = peer.ShapesCollection()
        sc[(x, y)[who]] = [spec()]
        with raises(ValueError):
            peer.export(module_of(f), ({"data": [[x, y]]},), dynamic_shapes=sc)
    with raises(ValueError):
        peer.export(
            module_of(lambda s, x: x + 2), (torch.randn(4),), dynamic_shapes={"x": [peer.Dim.STATIC(min=6, max=8)]}
        )


def ends_of_bounds(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("buf", torch.zeros(10))

        def forward(self, x, y):
            self.buf[0 : x.shape[0]] = x
            return x + 2, y[:, ::1]

    with torch.fx.experimental._config.patch(backed_size_oblivious=True):
        ep = peer.export(
            Foo(),
            (torch.randn(10), torch.randn(32, 36)),
            dynamic_shapes={"x": {0: peer.Dim("dx", min=1, max=10)}, "y": {0: peer.Dim("a"), 1: peer.Dim("b")}},
        )
    ep.module()(torch.randn(9), torch.randn(4, 4))
    ep.module()(torch.randn(1), torch.randn(1, 1))


def static_dims(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.part = nn.Linear(6, 4)

        def forward(self, x, y, z):
            return self.part(x) + y[1:], z * 2.0

    a = (torch.randn(4, 6), torch.randn(5, 4), torch.randn(3, 3))
    dx = peer.Dim("dx", min=3, max=6)
    dy = dx + 1
    dz = peer.Dim("dz", min=3, max=6)
    bad = [(torch.randn(4, 7), a[1], a[2]), (a[0], torch.randn(5, 5), a[2]), (a[0], a[1], torch.randn(3, 4))]
    for ds in [
        ({0: dx, 1: 6}, {0: dy, 1: 4}, {0: dz, 1: 3}),
        ((dx, None), (dy, 4), (dz, 3)),
        ((None, 6), (5, None), (None, None)),
        ((4, 6), {0: None, 1: 4}, {0: None, 1: 3}),
        (None, None, (peer.Dim.STATIC, peer.Dim.STATIC)),
    ]:
        ep = peer.export(A(), a, dynamic_shapes=ds)
        for b in bad:
            with raises((AssertionError, ValueError, RuntimeError)):
                ep.module()(*b)
    ep = peer.export(A(), a, dynamic_shapes=((dx, None), (dy, 4), (dz, 3)))
    assert len(ep.range_constraints) == 3
    assert all(v.lower < v.upper for v in ep.range_constraints.values())
    with raises(Exception):
        peer.export(A(), a, dynamic_shapes=((5, None), None, None))


def dim_1_2(peer):
    ep = peer.export(
        module_of(lambda s, x: x * 2),
        (torch.randn(2, 2),),
        dynamic_shapes=({0: peer.Dim("dx", min=1, max=2), 1: None},),
    )
    ep.module()(torch.randn(1, 2))
    with raises((AssertionError, ValueError, RuntimeError)):
        ep.module()(torch.randn(3, 2))
    v = next(iter(ep.range_constraints.values()))
    assert (v.lower, v.upper) == (1, 2)


def range_replacement(peer):
    dynamic = peer.Dim.DYNAMIC
    ep = peer.export(
        module_of(lambda s, x, y: (x + y)[:3]),
        (torch.randn(4), torch.randn(4)),
        dynamic_shapes=((dynamic,), (dynamic,)),
    )
    assert len(ep.range_constraints) == 1
    return int(next(iter(ep.range_constraints.values())).lower)


def wrapped_args(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, *args):
            return torch.sigmoid(self.linear(args[0] + args[1]))

    b = peer.Dim.DYNAMIC
    agrees_with_eager(peer, A(), (torch.randn(2, 5), torch.randn(2, 5)), dynamic_shapes={"args": ({0: b}, {0: b})})


def builder_basic(peer):
    m = module_of(lambda s, x, y, z: x + y[0] + z["k"])
    x, y, z = torch.randn(4), [torch.randn(4)], {"k": torch.randn(4)}
    c = peer.ShapesCollection()
    d = peer.Dim("dim", max=10)
    c[x] = (d,)
    c[y[0]] = (d,)
    c[z["k"]][0] = d
    ep = peer.export(m, (x, y, z), dynamic_shapes=c)
    sym = next(iter(ep.range_constraints))
    for n in ep.graph.nodes:
        if n.op == "placeholder":
            assert str(tuple(n.meta["val"].shape)) == f"({sym},)"


def builder_kwargs(peer):
    m = module_of(lambda s, x, y, z: x + y[0] + z["k"])
    x, y, z = torch.randn(4), [torch.randn(4)], {"k": torch.randn(4)}
    c = peer.ShapesCollection()
    d = peer.Dim("dim", max=10)
    c[x] = (d,)
    c[y[0]] = (d,)
    c[z["k"]] = (d,)
    ep = peer.export(m, (x,), kwargs={"z": z, "y": y}, dynamic_shapes=c)
    assert len(ep.range_constraints) == 1


def builder_pytree(peer):
    m = module_of(lambda s, inp: inp.x + inp.y[0] + inp.z["k"])
    x, y, z = torch.randn(4), [torch.randn(4)], {"k": torch.randn(4)}
    a = (Inp1(x, y, z),)
    c = peer.ShapesCollection()
    d = peer.Dim("dim", max=10)
    c[x] = (d,)
    c[y[0]] = (d,)
    c[z["k"]] = (d,)
    ep = peer.export(m, a, dynamic_shapes=c.dynamic_shapes(m, a))
    assert len(ep.range_constraints) == 1


def additional_inputs(peer):
    m = module_of(lambda s, x, y, z: (x + y[0])[:3] * z["k"])
    a = (torch.randn(4), [torch.randn(4)], {"k": torch.randn(3)})
    ai = peer.AdditionalInputs()
    ai.add((torch.randn(5), [torch.randn(5)], {"k": torch.randn(3)}))
    ep = peer.export(m, a, dynamic_shapes=ai)
    d = next(iter(ep.range_constraints))
    assert [str(tuple(n.meta["val"].shape)) for n in ep.graph.find_nodes(op="placeholder")] == [
        f"({d},)",
        f"({d},)",
        "(3,)",
    ]
    for bad in ((2, 2, 3), (6, 7, 3), (5, 5, 4)):
        b = (torch.randn(bad[0]), [torch.randn(bad[1])], {"k": torch.randn(bad[2])})
        with raises((AssertionError, ValueError, RuntimeError)):
            ep.module()(*b)
        ai = peer.AdditionalInputs()
        ai.add(b)
        with raises(RuntimeError):
            peer.export(m, a, dynamic_shapes=ai)


def interpolate_auto(peer):
    def f(s, x, y):
        return F.interpolate(F.interpolate(x, scale_factor=0.5, mode="bilinear"), scale_factor=2.0, mode="bilinear") + y

    dynamic = peer.Dim.AUTO
    agrees_with_eager(
        peer,
        module_of(f),
        (torch.rand(1, 1, 32, 32), torch.rand(1, 1, 32, 32)),
        dynamic_shapes={"x": {2: dynamic, 3: dynamic}, "y": {2: dynamic, 3: dynamic}},
    )


def no_duck(peer):

    def f(s, x, y):
        assert y.shape[1] == 4
        assert x.shape[0] == y.shape[0] - 1
        return x * 2, y * 2

    peer.export(
        module_of(f),
        (torch.randn(4, 4), torch.randn(5, 4)),
        dynamic_shapes={"x": [peer.Dim.AUTO] * 2, "y": [peer.Dim.AUTO] * 2},
    ).module()(torch.randn(6, 3), torch.randn(7, 4))


def dyn_divisible(peer):
    peer.export(
        module_of(lambda s, x: x.clone() * 2 if x.size(0) % 2 == 0 else x.clone() * 0),
        (torch.randn(4),),
        dynamic_shapes={"x": {0: peer.Dim.DYNAMIC}},
    )


def dataclass_shapes(peer):
    b = peer.Dim("batch")
    ep = peer.export(
        module_of(lambda s, inputs: torch.matmul(inputs.x, inputs.z["k"])),
        (Inp1(torch.randn(10, 2, 3), [], {"k": torch.randn(10, 3, 4)}),),
        dynamic_shapes={"inputs": [{0: b}, [], {"k": {0: b}}]},
    )
    return [str(n.meta["val"].shape[1:]) for n in ep.graph.nodes if n.op == "placeholder"]


def prim_guard(peer):
    m = module_of(lambda s, x, y: x + y)
    d = {"x": {0: peer.Dim("d", min=6)}, "y": None}
    ep = peer.export(m, (torch.ones(7, 5), 5), dynamic_shapes=d)
    assert_close(ep.module()(torch.ones(8, 5), 5), torch.ones(8, 5) + 5)
    with raises(AssertionError):
        ep.module()(torch.ones(8, 5), 6)
    ep = peer.export(m, (torch.ones(7, 5), 5.0), dynamic_shapes=d)
    with raises(AssertionError):
        ep.module()(torch.ones(7, 5), 6.0)


def str_guard(peer):
    ep = peer.export(
        module_of(lambda s, a, b, mode: torch.div(a, b, rounding_mode=mode)),
        (torch.randn(4, 4), torch.randn(4), "trunc"),
    )
    with raises(AssertionError):
        ep.module()(torch.randn(4, 4), torch.randn(4), "floor")


def retrace_guards(peer):
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.buf = nn.Buffer(torch.ones(1))

        def forward(self, x):
            self.buf.add_(1)
            return x.sum() + self.buf.sum()

    x = torch.ones(5, 5)
    ep = peer.export(B(), (x,), dynamic_shapes=({0: peer.Dim("d")},))
    r = peer.export(ep.module(), (x,))
    with raises(AssertionError):
        r.module()(torch.ones(7, 5))
    r = peer.export(ep.module(), (x,), dynamic_shapes=({0: peer.Dim("d")},))
    r.module()(torch.ones(7, 5))
    v2 = peer.export(B(), (x,), dynamic_shapes={"x": {0: peer.Dim("e", min=3)}})
    with raises((AssertionError, RuntimeError, ValueError)):
        peer.export(v2.module(), (torch.randn(2, 5),))


def unused_dynamism(peer):
    m = module_of(lambda s, x: x.x + 1)
    a = (Inp1(torch.ones(10, 4), [torch.zeros(10, 4)], {}),)
    a1, b1 = peer.dims("a", "b")
    ep = peer.export(m, a, dynamic_shapes={"x": [{0: a1}, [{0: b1}], {}]})
    for n in ep.graph.nodes:
        if n.op == "placeholder":
            assert isinstance(n.meta["val"].shape[0], torch.SymInt)
            assert isinstance(n.meta["val"].shape[1], int)


def nonarg_shapes(peer):
    m = module_of(lambda s, a, b, kw1, kw2: a.sum() + b.sum() + kw1.sum() - kw2.sum())
    r = torch.randn
    ep = peer.export(
        m,
        (r(4, 4), r(4, 4)),
        {"kw2": r(4, 4), "kw1": r(4, 4)},
        dynamic_shapes=(None, {0: peer.Dim("d")}, {0: peer.Dim("k")}, None),
    )
    a = (r(4, 4), r(7, 4))
    k = {"kw2": r(4, 4), "kw1": r(9, 4)}
    assert_close(ep.module()(*a, **k), m(*a, **k))
