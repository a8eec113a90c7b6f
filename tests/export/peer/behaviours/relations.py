"""Sizes that depend on each other, and what is said where they do not fit."""

import torch

from tests.export.peer.asking import assert_close, module_of, raises


def suggested_fixes(peer):
    def f(s, x, c):
        return (x + 1, c + 2) if x.shape[0] <= 6 else (x - 1, c - 2)

    with raises(Exception, r"dim = Dim\('dim', min=3, max=6\)"):
        peer.export(module_of(f), (torch.ones(5), torch.ones(4)), dynamic_shapes=({0: peer.Dim("dim", min=3)}, None))


def derived_nested(peer):
    d = peer.Dim("dimx", min=3, max=6)
    m = module_of(lambda s, x, y: x + y[1::2])
    ep = peer.export(m, (torch.randn(5), torch.randn(11)), dynamic_shapes=({0: d}, {0: d * 2 + 1}))
    assert ep.module()(torch.randn(4), torch.randn(9)).size(0) == 4
    m = module_of(lambda s, z, y: z[1:] + y[1::2])
    a = (torch.randn(6), torch.randn(11))
    ep = peer.export(m, a, dynamic_shapes=({0: d}, {0: d * 2 - 1}))
    assert ep.module()(torch.randn(5), torch.randn(9)).size(0) == 4
    with raises(Exception):
        peer.export(m, a, dynamic_shapes=({0: d + 1}, {0: d * 2 - 1}))
    ep = peer.export(m, a, dynamic_shapes=({0: d + 1}, {0: d * 2 + 1}))
    for b in ((8, 15), (5, 8)):
        with raises((AssertionError, ValueError, RuntimeError)):
            ep.module()(torch.randn(b[0]), torch.randn(b[1]))
    assert ep.module()(torch.randn(5), torch.randn(9)).size(0) == 4


def derived_integer(peer):
    m = module_of(lambda s, w: w[::2] if w.shape[0] % 2 == 0 else w[1:-1:2])
    d = peer.Dim("dimx", min=3, max=6)
    with raises(Exception):
        peer.export(m, (torch.randn(10),), dynamic_shapes=({0: d * 2 + 1},))
    ep = peer.export(m, (torch.randn(10),), dynamic_shapes=({0: d * 2},))
    for n in (9, 14):
        with raises((AssertionError, ValueError, RuntimeError)):
            ep.module()(torch.randn(n))
    assert ep.module()(torch.randn(8)).size(0) == 4


def derived_repeat(peer):
    d = peer.Dim("dimx", min=3, max=6) * 2
    ep = peer.export(
        module_of(lambda s, u, v: u[::2] + v[::2]), (torch.randn(10), torch.randn(10)), dynamic_shapes=({0: d}, {0: d})
    )
    assert ep.module()(torch.randn(8), torch.randn(8)).size(0) == 4


def derived_out_of_order(peer):
    y = peer.Dim("dimy", min=5, max=7)
    x = y - 1
    z = y + 1
    ep = peer.export(
        module_of(lambda s, x, y, z: x + y[1:] + z[2:]),
        (torch.randn(5), torch.randn(6), torch.randn(7)),
        dynamic_shapes=({0: x}, {0: y}, {0: z}),
    )
    with raises((AssertionError, ValueError, RuntimeError)):
        ep.module()(torch.randn(6), torch.randn(7), torch.randn(5))
    assert ep.module()(torch.randn(6), torch.randn(7), torch.randn(8)).size(0) == 6


def derived_ooo_repeat(peer):
    y = peer.Dim("dimy", min=5, max=7)
    x = y - 1
    z = y + 1
    x2 = z - 2
    u, v, w = torch.randn(5), torch.randn(6), torch.randn(7)
    m = module_of(lambda s, x, y, z, x1, x2: x + y[1:] + z[2:] + x1 + x2)
    for a in ((u, v, w, torch.randn(5), torch.randn(5)), (u, v, w, u, u)):
        ep = peer.export(m, a, dynamic_shapes=({0: x}, {0: y}, {0: z}, {0: x}, {0: x2}))
        with raises((AssertionError, ValueError, RuntimeError)):
            ep.module()(*[torch.randn(n) for n in (6, 7, 8, 6, 5)])
        assert ep.module()(*[torch.randn(n) for n in (6, 7, 8, 6, 6)]).size(0) == 6


def specialize_derived_roots(peer):
    d = peer.Dim("dy", min=6)
    with raises(Exception, "dy = 12"):
        peer.export(
            module_of(lambda s, x, y: x.reshape([-1]) + y),
            (torch.randn(6, 2), torch.randn(12)),
            dynamic_shapes={"x": (d - 6, 2), "y": (d,)},
        )


def ooo_simplified(peer):
    zz = peer.Dim("_dimz", min=6, max=8)
    y = zz - 1
    x = y - 1
    m = module_of(lambda s, x, y, z: x + y[1:] + z[2:])
    a = (torch.randn(5), torch.randn(6), torch.randn(7))
    with raises(Exception, "dimz = _dimz"):
        peer.export(m, a, dynamic_shapes=({0: x}, {0: y}, {0: peer.Dim("dimz", min=6, max=8)}))
    ep = peer.export(m, a, dynamic_shapes=({0: x}, {0: y}, {0: x + 2}))
    assert ep.module()(torch.randn(6), torch.randn(7), torch.randn(8)).size(0) == 6


def derived_1_2(peer):
    d = peer.Dim("dx", min=1, max=2)
    ep = peer.export(
        module_of(lambda s, x, y: x + y[1:]),
        (torch.randn(2, 2), torch.randn(3, 2)),
        dynamic_shapes=({0: d, 1: None}, {0: d + 1, 1: None}),
    )
    assert sorted(v.lower for v in ep.range_constraints.values()) == [1, 2]
    assert sorted(v.upper for v in ep.range_constraints.values()) == [2, 3]


def conflicting_derived(peer):
    d = peer.Dim("dx", min=1, max=2)
    with raises(Exception):
        peer.export(
            module_of(lambda s, x, y: x + y),
            (torch.randn(2, 3), torch.randn(2, 3)),
            dynamic_shapes={"x": (2 * d, peer.Dim.STATIC), "y": (d + 1, peer.Dim.STATIC)},
        )


def mismatched_shapes(peer):
    m = module_of(lambda s, x: x["k"]["k"][0] + x["k"]["k"][1])
    a = ({"k": {"k": [torch.rand(4), torch.rand(4)]}},)
    d = peer.Dim("dim")
    peer.export(m, a, dynamic_shapes=({"k": {"k": [(d,), (d,)]}},))
    for bad in (
        {"k": {"k": [d, d]}},
        ({"k": {"k": [d, d]}},),
        ({"k": {"k": (d, d)}},),
        ({"k": {"k": d}},),
        {"x": {"k": [(d,), (d,)]}, "k": {"k": [(d,), (d,)]}},
        ({"k": {"k": [(d,), (d,), (d,)]}},),
        ({"k": {"K": [(d,), (d,), (d,)]}},),
    ):
        with raises(Exception):
            peer.export(m, a, dynamic_shapes=bad)
    peer.export(
        module_of(lambda s, x: x["k"]["k1"][0] + x["k"]["k2"][0]),
        ({"k": {"k1": [torch.rand(4)], "k2": [torch.rand(4)]}},),
        dynamic_shapes=({"k": {"k2": [(d,)], "k1": [(d,)]}},),
    )
    with raises(Exception):
        peer.export(module_of(lambda s, x: x + 2), (torch.randn(4, 8, 6),), dynamic_shapes={"x": (d, None)})


def mod_constraints(peer):
    m = module_of(lambda s, x: x.view(x.shape[0] - 1, -1))
    ep = peer.export(
        m,
        (torch.randn(3, 4),),
        dynamic_shapes={"x": (peer.Dim("a", min=3), peer.Dim("b", max=8000))},
        prefer_deferred_runtime_asserts_over_guards=True,
    )
    ep.module()(torch.randn(4, 3))
    with raises(RuntimeError):
        ep.module()(torch.randn(4, 5))
    ep = peer.export(m, (torch.randn(3, 4),), dynamic_shapes={"x": (None, 2 * peer.Dim("_d", max=4000))})
    with raises((AssertionError, ValueError, RuntimeError)):
        ep.module()(torch.randn(3, 5))


def distinct_error(peer):
    b, m, k1, k2, n = peer.dims("batch", "M", "K1", "K2", "N")
    with raises(Exception, "K2 = K1"):
        peer.export(
            module_of(lambda s, x, y: torch.matmul(x, y)),
            (torch.randn(10, 2, 3), torch.randn(10, 3, 4)),
            dynamic_shapes={"x": (b, m, k1), "y": (b, k2, n)},
        )
    with raises(Exception, "K1 = 3"):
        peer.export(
            module_of(lambda s, x, y: torch.matmul(x, y)),
            (torch.randn(10, 2, 3), torch.randn(10, 3, 4)),
            dynamic_shapes={"x": (b, m, k1), "y": (b, None, n)},
        )

    def f(s, x, y):
        return torch.matmul(x, y) if x.shape[0] < 16 and y.shape[1] % 3 == 0 else x + y

    with raises(Exception, r"batch = Dim\('batch', max=15\)(.*\n)*.*K = 3\*_K"):
        peer.export(
            module_of(f),
            (torch.randn(10, 2, 3), torch.randn(10, 3, 4)),
            dynamic_shapes={"x": (b, m, k1), "y": (b, k1, n)}
            if 0
            else {"x": (b, m, peer.Dim("K")), "y": (b, peer.Dim("K"), n)},
        )


def new_roots(peer):
    def f(s, x, y, z):
        if x.shape[0] >= 5 and x.shape[0] <= 36 and y.shape[0] % 3 == 0:
            return x + y[1:] + z[3:]
        return None

    dx, dy, dz = peer.dims("dx", "dy", "dz")
    a = (torch.randn(11), torch.randn(12), torch.randn(14))
    with raises(Exception, r"dx = 3\*_dx - 1(.*\n)*.*dy = 3\*_dx(.*\n)*.*dz = 3\*_dx \+ 2"):
        peer.export(module_of(f), a, dynamic_shapes={"x": (dx,), "y": (dy,), "z": (dz,)})
    r = peer.Dim("_dx", min=2, max=12)
    peer.export(module_of(f), a, dynamic_shapes={"x": (3 * r - 1,), "y": (3 * r,), "z": (3 * r + 2,)})


def refine(peer):
    from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes as tr

    refine = tr if peer is torch.export else peer.refine_dynamic_shapes_from_suggested_fixes

    def helper(m, a, ds):
        try:
            peer.export(m, a, dynamic_shapes=ds)
        except (RuntimeError, ValueError) as e:
            new = refine(getattr(e, "msg", str(e)), ds)
            peer.export(m, a, dynamic_shapes=new)
            return new
        raise Exception("no error")

    dx = peer.Dim("dx", max=16)
    n = helper(
        module_of(lambda s, x, y, z: (x + y[1:] + z[2:], x @ torch.randn(4, 4))),
        (torch.randn(4), torch.randn(5), torch.randn(6)),
        {"x": (dx,), "y": (dx + 1,), "z": (dx + 2,)},
    )
    assert n["x"][0] == 4
    assert n["z"][0] == 6

    def f(s, x, y):
        if x.shape[0] >= 6 and y.shape[0] <= 16:
            return x * 2.0, y + 1
        return None

    n = helper(module_of(f), (torch.randn(16), torch.randn(12)), {"x": (peer.Dim("dx"),), "y": (peer.Dim("dy"),)})
    assert n["x"][0].min == 6
    assert n["y"][0].max == 16
    n = helper(
        module_of(lambda s, x: x.reshape([-1, 3]) if x.shape[0] >= 9 else None),
        (torch.randn(15),),
        ((peer.Dim("dx"),),),
    )
    assert n[0][0].fn(2) == 6
    assert n[0][0].root.min == 3
    n = helper(
        module_of(lambda s, x, y: x + y[4:]),
        (torch.randn(6, 4), torch.randn(10, 4)),
        {"x": (peer.Dim("dx0"), peer.Dim("dx1")), "y": (peer.Dim("dy0"), peer.Dim("dy1"))},
    )
    assert n["y"][0].fn(5) == 9
    assert n["x"][0] == n["y"][0].root
    assert n["x"][1] == n["y"][1]


def same_name_dims(peer):
    with raises(Exception):
        peer.export(
            module_of(lambda s, x, y: x @ y),
            (torch.randn(10, 10), torch.randn(10, 10)),
            dynamic_shapes={
                "x": (peer.Dim("C", min=3), peer.Dim("C", max=12)),
                "y": (peer.Dim("C", max=12), peer.Dim("C", min=3)),
            },
        )


def automatic_size_of_one_that_broadcasts(peer):
    sizes = {0: peer.Dim.AUTO, 1: peer.Dim.AUTO}
    ep = peer.export(
        module_of(lambda s, x, y: x + y), (torch.ones(4, 3), torch.ones(1, 3)), dynamic_shapes=(sizes, sizes)
    )
    assert_close(ep.module()(torch.ones(6, 2), torch.ones(1, 2)), torch.full((6, 2), 2.0))
    with raises(Exception, "shape|size"):
        ep.module()(torch.ones(6, 2), torch.ones(6, 2))


def conditions_of_a_program_that_is_exported_again(peer):
    def f(self, x):
        return x * 2 if x.shape[0] <= 64 else x * 3

    shapes = {"x": {0: peer.Dim("n", min=2, max=64)}}
    first = peer.export(module_of(f), (torch.ones(4, 3),), dynamic_shapes=shapes).module()
    again = peer.export(first, (torch.ones(4, 3),), dynamic_shapes={"x": {0: peer.Dim.AUTO}}).module()
    assert_close(again(torch.ones(6, 3)), torch.full((6, 3), 2.0))
    with raises(Exception, "64"):
        again(torch.ones(65, 3))
