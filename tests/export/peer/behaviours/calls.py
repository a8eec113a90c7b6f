"""Calls and containers."""

import dataclasses
import io

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, operators, raises


@dataclasses.dataclass
class DC:
    x: int
    y: int
    z: int = None


@dataclasses.dataclass
class DC2:
    x: int
    y: int
    z: int = None


def no_tensor_1(peer):
    return str(agrees_with_eager(peer, module_of(lambda s, x, y: y), ([torch.ones(1, 3)], 1)).graph)


def no_tensor_2(peer):
    return str(agrees_with_eager(peer, module_of(lambda s, x, y: x), (torch.ones(1, 3), 1)).graph)


def no_tensor_3(peer):
    return str(agrees_with_eager(peer, module_of(lambda s, x, y: 5), (2, 1)).graph)


def no_tensor_4(peer):
    return str(agrees_with_eager(peer, module_of(lambda s, x, y: x), ([torch.ones(1, 3)], 1)).graph)


def table_container(peer):
    with torch.library._scoped_library("precast_peer_library", "FRAGMENT") as lib:
        n = len(peer.default_decompositions())
        lib.define("foo123(Tensor x) -> Tensor")
        lib.impl("foo123", lambda x: x.sin(), "CompositeImplicitAutograd")
        t = peer.default_decompositions()
        assert len(t) - n == 1
        assert torch.ops.precast_peer_library.foo123.default in t
        del t[torch.ops.precast_peer_library.foo123.default]
        assert torch.ops.precast_peer_library.foo123.default not in t
        t.materialize()
        assert torch.ops.precast_peer_library.foo123.default not in t


def kwargs(peer):
    agrees_with_eager(
        peer,
        module_of(lambda s, a, b, kw1, kw2: (a + b, kw1 + kw2)),
        (torch.ones(6, 4), torch.ones(1, 1)),
        {"kw1": torch.ones(1, 1), "kw2": torch.ones(6, 4)},
    )
    agrees_with_eager(
        peer,
        module_of(lambda s, p, q, a, b: (p + a["kw1"] + b[0], q + a["kw2"] + b[1])),
        (torch.ones(2, 3), torch.ones(3, 4)),
        {"a": {"kw1": torch.ones(2, 3), "kw2": torch.ones(3, 4)}, "b": [torch.ones(2, 3), torch.ones(3, 4)]},
    )
    agrees_with_eager(
        peer, module_of(lambda s, p, q, a=1, b=2: (p + a, q + b)), (torch.ones(6, 4), torch.ones(1, 1)), {"b": 1}
    )


def kwargs_reorder(peer):
    o = torch.ones(3)
    ep = peer.export(module_of(lambda s, *, x, y, z: x + y + z), (), {"z": o, "y": o, "x": o})
    ep.module()(z=o, y=o, x=o)
    ep.module()(x=o, z=o, y=o)


def set_example_inputs(peer):
    o = torch.ones(3)
    ep = peer.export(module_of(lambda s, a, *, x, y, z: (a, x + y + z)), (o,), {"z": o, "y": o, "x": o})
    ep.module()(*ep.example_inputs[0], **ep.example_inputs[1])
    ep.example_inputs = ((o,), {"x": o, "z": o, "y": o})
    ep.module()(*ep.example_inputs[0], **ep.example_inputs[1])
    for bad in ((o,), ((o,), {}), ((), {"x": o, "z": o, "y": o})):
        with raises(ValueError):
            ep.example_inputs = bad


def var_positional(peer):
    agrees_with_eager(
        peer,
        module_of(lambda s, a, b, *args: (a + args[0], b + args[1])),
        (torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 3), torch.ones(3, 4)),
    )
    agrees_with_eager(
        peer,
        module_of(lambda s, a, b, *args, kw1, kw2: (a + args[0] + kw1, b + args[1] + kw2)),
        (torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 3), torch.ones(3, 4)),
        {"kw1": torch.ones(2, 3), "kw2": torch.ones(3, 4)},
    )
    agrees_with_eager(
        peer,
        module_of(
            lambda s, a, b, *args, kw1, kw2, **kw: (a + args[0] + kw1 + kw["kw3"], b + args[1] + kw2 + kw["kw4"])
        ),
        (torch.ones(2, 3), torch.ones(3, 4), torch.ones(2, 3), torch.ones(3, 4)),
        {"kw1": torch.ones(2, 3), "kw2": torch.ones(3, 4), "kw3": torch.ones(2, 3), "kw4": torch.ones(3, 4)},
    )


def register_dataclass(peer):
    c = DC if peer is torch.export else DC2
    peer.register_dataclass(c, serialized_type_name=f"peer.{c.__name__}")
    flat, spec = pytree.tree_flatten(c(3, 4))
    assert flat == [3, 4], flat
    b = pytree.tree_unflatten(flat, spec)
    assert (b.x, b.y, b.z) == (3, 4, None)
    assert pytree.treespec_loads(pytree.treespec_dumps(spec)) == spec


def device_to_static(peer):
    ep = peer.export(module_of(lambda s, x: x.to("cpu")), (torch.tensor(1),))
    o = [x for x in operators(ep) if "metadata" not in x]
    return [o, [x for x in operators(ep.run_decompositions({})) if "metadata" not in x]]


def float_conversion(peer):
    ep = peer.export(module_of(lambda s, x: x.float()), (torch.tensor(1.0),))
    x = torch.tensor(1.0)
    o = ep.run_decompositions({}).module()(x)
    assert o is x


def float_from_int(peer):
    ep = peer.export(module_of(lambda s, x: x.float()), (torch.tensor(1, dtype=torch.int32),))
    for e in (ep, ep.run_decompositions({})):
        with raises(RuntimeError):
            e.module()(torch.tensor(1.0))
        assert e.module()(torch.tensor(1, dtype=torch.int32)) == 1


def args_type(peer):
    with raises(Exception, "tuple"):
        peer.export(module_of(lambda s, x: x + 1), torch.rand(2, 2))


def mixed_input(peer):
    ep = peer.export(
        module_of(lambda s, a, b, alpha: torch.add(a, b, alpha=alpha)), (torch.rand(1, 2), torch.rand(1, 2), 10)
    )
    assert all(isinstance(n.meta["val"], (torch.Tensor, int)) for n in ep.graph.nodes if n.op == "placeholder")


def size_input(peer):
    agrees_with_eager(
        peer,
        module_of(lambda s, t, size: F.affine_grid(t, size, align_corners=None)),
        (torch.ones(1, 2, 3), torch.Size((1, 3, 24, 24))),
    )


def wrong_inputs(peer):
    with raises(ValueError):
        peer.export(module_of(lambda s, x: x + x), (torch.rand(2, 3),), {}).module()(torch.rand(2, 3), torch.rand(2, 3))


def lazy_module(peer):
    class L(nn.modules.lazy.LazyModuleMixin, nn.Module):
        def initialize_parameters(self, *a, **k):
            pass

        def forward(self, x, y):
            return x + y

    k = {"x": torch.randn(3, 3), "y": torch.randn(3, 3)}
    ep = peer.export(L(), (), k)
    assert_close(ep.module()(**k), k["x"] + k["y"])


def names_collide(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.param = nn.Parameter(torch.ones(3))
            self.alpha = nn.Parameter(torch.ones(3))

        def forward(self, p_param, x, mul, add, add_1):
            return p_param + x + self.param + self.alpha + mul + add * add_1 + (x * x)

    a = tuple(torch.ones(3) for _ in range(5))
    ep = agrees_with_eager(peer, A(), a)
    return [n.name for n in ep.graph.nodes]


def names_order(peer):
    m = module_of(lambda s, x, *args, y=None, **kw: x + args[0] + args[1] + y + kw["b"] + kw["a"]["k"])
    o = torch.ones(2)
    return [
        n.name for n in peer.export(m, (o, o, o), {"y": o, "b": o, "a": {"k": o}}).graph.nodes if n.op == "placeholder"
    ]


def names_containers(peer):
    m = module_of(lambda s, x, y: x[0] + x[1]["k"][0] + y[0][0])
    o = torch.ones(2)
    return [n.name for n in peer.export(m, ((o, {"k": [o]}), [[o]])).graph.nodes]


def input_named_self_method(peer):
    m = module_of(lambda s, input, int, filter: input + int + filter)
    o = torch.ones(2)
    ep = agrees_with_eager(peer, m, (o, o, o))
    return len(ep.graph_signature.user_inputs)


def print_in_forward(peer):
    def f(s, x):
        print("hello", x.shape)
        import warnings as w

        w.warn("eh", stacklevel=2)
        return x + 1

    import contextlib

    with contextlib.redirect_stdout(io.StringIO()):
        agrees_with_eager(peer, module_of(f), (torch.ones(3),))


def logging(peer):
    import logging

    lg = logging.getLogger("probe")

    def f(s, x):
        lg.info("x")
        lg.warning("y %s", x.shape)
        return x + 1

    return operators(agrees_with_eager(peer, module_of(f), (torch.ones(3),)))


def hooks(peer):
    m = nn.Sequential(nn.Linear(3, 3))
    m[0].register_forward_hook(lambda mod, i, o: o * 2)
    m.register_forward_pre_hook(lambda mod, i: (i[0] + 1,))
    agrees_with_eager(peer, m, (torch.ones(2, 3),))


def optional_input(peer):
    m = module_of(lambda s, x, y=None: x if y is None else x + y)
    ep = agrees_with_eager(peer, m, (torch.ones(3), None))
    return [n.name for n in ep.graph.nodes]


def none_output(peer):
    assert (
        agrees_with_eager(peer, module_of(lambda s, x: (x, None, [None, 3])), (torch.ones(3),)).module()(torch.ones(3))[
            1
        ]
        is None
    )
