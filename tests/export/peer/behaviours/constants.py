"""Constants, and tensors with several names."""

import dataclasses
import io
import warnings

import torch
from torch import nn
from torch.testing._internal.custom_tensor import ConstantExtraMetadataTensor, CustomTensorPlainOut
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils import _pytree as pytree

from tests.export.peer.asking import agrees_with_eager, assert_close, module_of, operators, raises


class Sub1(nn.Module):
    def __init__(self):
        super().__init__()
        self.p1 = nn.Parameter(torch.ones(3, 4))
        self.p2 = nn.Parameter(CustomTensorPlainOut(torch.ones(3, 4), torch.ones(3, 4)))

    def forward(self, x):
        return x + (2 * self.p1 + self.p2).sum()


@dataclasses.dataclass
class D4:
    b: bool
    i: int
    f: float
    t: torch.Tensor


pytree.register_dataclass(D4)


class _I1(nn.Module):
    def forward(self, x):
        return x + x


class _I2(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = torch.ones(3, 3)

    def forward(self, x):
        return x + self.b


class _I3(nn.Module):
    def __init__(self):
        super().__init__()
        self.b = torch.tensor(5)

    def forward(self, x):
        return x + self.b


class _I4(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.ones(3, 3))
        self.b = nn.Parameter(torch.tensor(5.0))

    def forward(self, x):
        return x + self.a * self.b


def _nested(exporter, c, run=False):
    m = module_of(lambda s, x: c()(x) * x)
    x = torch.randn(3, 3)
    ep = exporter.export(m, (x,))
    ep = ep.run_decompositions({}) if run else ep
    assert_close(ep.module()(x), m(x))
    assert_close(exporter.unflatten(ep)(x), m(x))
    return ep


class _M2(nn.Module):
    def __init__(self):
        super().__init__()
        self.foo = torch.ones(3, 3)

    def forward(self, x):
        return x + self.foo


class _M1(nn.Module):
    def __init__(self, m2, foo):
        super().__init__()
        self.m2 = m2
        self.foo = foo

    def forward(self, x):
        return x + self.foo + self.m2(x)


def not_registered_parameter(peer):
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.params = {"foo": nn.Parameter(torch.ones(3, 3))}

        def forward(self, x):
            return x + self.params["foo"]

    ep = agrees_with_eager(peer, B(), (torch.randn(1, 3),))
    assert len(ep.graph_signature.lifted_tensor_constants) == 1
    assert len(ep.graph_signature.parameters) == 0
    assert len(list(ep.module().named_parameters())) == 0


def unused_constant(peer):
    def f(s, x):
        torch.tensor(3)
        return x * x

    assert len(peer.export(module_of(f), (torch.ones(3),)).constants) == 0


def setgrad_lifted(peer):
    def f(s, x, y):
        with torch.enable_grad():
            z = torch.tensor(4) + x + y
        return z * z

    with torch.no_grad():
        agrees_with_eager(peer, module_of(f), (torch.randn(4), torch.randn(4)))


def cond_const_int(peer):
    agrees_with_eager(
        peer, module_of(lambda s, x: x[torch.cond(x.sum() > 3, lambda: 0, lambda: 1, ())]), (torch.randn(3, 3),)
    )


def subclass_param(peer):
    x = torch.randn(3, 4)
    ep = peer.export(Sub1(), (x,))
    assert_close(ep.module()(x), Sub1()(x))
    return str(ep.graph)


def subclass_param_decomp(peer):
    x = torch.randn(3, 4)
    ep = peer.export(Sub1(), (x,)).run_decompositions({})
    assert_close(ep.module()(x), Sub1()(x))
    return str(ep.graph)


def subclass_attr(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()

            def t():
                return TwoTensor(
                    TwoTensor(torch.ones(3, 4), torch.ones(3, 4)), TwoTensor(torch.ones(3, 4), torch.ones(3, 4))
                )

            self.p1 = nn.Parameter(torch.ones(3, 4))
            self.p2 = nn.Parameter(t())
            self.b1 = nn.Buffer(t())

        def forward(self, x):
            res = (2 * self.p1 + self.p2 + self.b1).sum()
            return x + res.get_elem_a().b

    x = torch.randn(3, 4)
    ep = peer.export(Foo(), (x,))
    assert_close(ep.module()(x), Foo()(x))


def subclass_const(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.p1 = nn.Parameter(torch.ones(3, 4))
            self.p2 = nn.Parameter(ConstantExtraMetadataTensor(ConstantExtraMetadataTensor(torch.ones(3, 4))))

        def forward(self, x):
            res = 2 * self.p1 + self.p2
            r = res + res.constant_attribute
            return x + r.elem.elem

    x = torch.randn(3, 4)
    ep = peer.export(Foo(), (x,))
    assert_close(ep.module()(x), Foo()(x))


def cond_constant_pred(peer):
    m = module_of(lambda s, pred, x: torch.cond(pred, lambda x: x.sin(), lambda x: x.cos(), (x,)))
    with warnings.catch_warnings(record=True) as w:
        warnings.simplefilter("always")
        ep = peer.export(m, (True, torch.randn(3, 3)))
    assert any("Pred is a Python constant" in str(x.message) for x in w)
    return operators(ep)


def additional_constants(peer):
    m = module_of(lambda s, d: d.i + d.f + d.t)
    i1 = (D4(True, 3, 3.0, torch.ones(3)),)
    ai = peer.AdditionalInputs()
    ai.add(i1)
    ai.add((D4(True, 4, 3.0, torch.ones(4)),))
    assert ai.dynamic_shapes(m, i1) == {"d": [None, peer.Dim.DYNAMIC, None, (peer.Dim.DYNAMIC,)]}, ai.dynamic_shapes(
        m, i1
    )
    peer.export(m, i1, dynamic_shapes=ai)
    for other in (D4(True, 3, 4.0, torch.ones(3)), D4(False, 3, 3.0, torch.ones(3))):
        ai = peer.AdditionalInputs()
        ai.add(i1)
        ai.add((other,))
        with raises(ValueError, "cannot be marked as dynamic"):
            ai.dynamic_shapes(m, i1)
        with raises(ValueError):
            peer.export(m, i1, dynamic_shapes=ai)


def const_to(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.t = torch.tensor([1.0])

        def forward(self, x):
            return x + self.t.to(torch.float64)

    ep = peer.export(A(), (torch.randn(1, 10),)).run_decompositions({})
    x = torch.randn(1, 10)
    assert_close(ep.module()(x), A()(x))
    assert "aten._to_copy.default" in operators(ep)


def wrapped_method_constant(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.constant = torch.ones(4, 4)

        def forward(self, x):
            return x + self.constant, self.constant

    class W(nn.Module):
        def __init__(self, fn):
            super().__init__()
            self.fn = fn

        def forward(self, *a, **k):
            return self.fn(*a, **k)

    agrees_with_eager(peer, A(), (torch.zeros(4, 4),))
    agrees_with_eager(peer, W(A().forward), (torch.zeros(4, 4),))


def module_input(peer):
    class IM(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)

        def forward(self, x, y):
            return self.linear(x) * y

    f = module_of(lambda s, x, y, m: m(x, y) + x + y)
    ep = peer.export(f, (torch.randn(3), torch.randn(3), IM()), strict=False)
    a = (torch.randn(3), torch.randn(3), IM())
    assert_close(f(*a), ep.module()(*a))


def module_input_subclass(peer):
    class IM(nn.Module):
        def __init__(self):
            super().__init__()
            self.p1 = nn.Parameter(torch.ones(2, 2))
            self.p2 = nn.Parameter(
                CustomTensorPlainOut(
                    CustomTensorPlainOut(torch.ones(2, 2), torch.ones(2, 2)),
                    CustomTensorPlainOut(torch.ones(2, 2), torch.zeros(2, 2)),
                )
            )

        def forward(self, x):
            return x + (x + 2 * self.p1 + self.p2).sum().sum()

    f = module_of(lambda s, x, m: m(x) * 2)
    m = IM()
    ep = peer.export(f, (torch.randn(2, 2), m), strict=False)
    x = torch.randn(2, 2)
    assert_close(f(x, m), ep.module()(x, m))


def lifted_constants(peer):
    ep = peer.export(module_of(lambda s, x: x + torch.tensor(3)), (torch.tensor(1),))
    assert len(ep.graph_signature.input_specs) == 2
    assert len(ep.constants) == 1

    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = torch.tensor(3)

        def forward(self, x):
            part = [torch.tensor(3), torch.tensor(4)]
            return x + self.a + part[0] + part[1]

    ep = peer.export(Foo(), (torch.tensor(1),))
    assert len(ep.graph_signature.input_specs) == 4
    assert len(ep.constants) == 3
    assert_close(ep.run_decompositions().module()(torch.tensor(5)), Foo()(torch.tensor(5)))


def zero_args(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.x = torch.tensor([1, 2])

        def forward(self):
            return self.x.clone()

    assert list(peer.export(Foo(), ()).graph_signature.lifted_tensor_constants) == ["x"]


def constant_output(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.b = torch.randn(3, 2)

        def forward(self):
            return self.b

    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.bff = torch.randn(3, 2)

        def forward(self, x, y):
            return {"prediction": (x + y, self.bff)}

    agrees_with_eager(peer, A(), ())
    agrees_with_eager(peer, B(), (torch.randn(3, 2), torch.randn(3, 2)))


def nested_module(peer):
    ep = _nested(peer, _I1)
    n = next(n for n in ep.graph.nodes if n.target == torch.ops.aten.add.Tensor)
    return [len(n.meta["nn_module_stack"]), str(ep.graph)]


def nested_init_buffer(peer):
    ep = _nested(peer, _I2)
    assert not ep.state_dict
    assert not ep.constants
    return str(ep.graph)


def nested_const(peer):
    ep = _nested(peer, _I3, True)
    assert not ep.state_dict
    assert len(ep.constants) == 1
    return str(ep.graph)


def nested_param(peer):
    ep = _nested(peer, _I4, True)
    assert not ep.state_dict
    assert len(ep.constants) == 1


def constant_aliasing(peer):
    m2 = _M2()
    m = _M1(m2, m2.foo)
    ep = peer.export(m, (torch.ones(3, 3),))
    u = peer.unflatten(ep)
    assert_close(u(torch.ones(3, 3)), m(torch.ones(3, 3)))
    return [sorted(ep.constants), [s.kind.name for s in ep.graph_signature.input_specs].count("CONSTANT_TENSOR")]


def constant_aliasing_saved(peer):
    m2 = _M2()
    m = _M1(m2, m2.foo)
    ep = peer.export(m, (torch.ones(3, 3),))
    f = io.BytesIO()
    peer.save(ep, f)
    f.seek(0)
    e = peer.load(f)
    assert_close(e.module()(torch.ones(3, 3)), m(torch.ones(3, 3)))
    return sorted(e.constants)


def buffer_alias_nonpersistent(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            b = torch.ones(3)
            self.register_buffer("a", b, persistent=False)
            self.register_buffer("b", b, persistent=False)

        def forward(self, x):
            return x + self.a + self.b

    ep = agrees_with_eager(peer, A(), (torch.ones(3),))
    return sorted(ep.constants)


def tied(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.a = nn.Linear(3, 3)
            self.b = nn.Linear(3, 3)
            self.b.weight = self.a.weight

        def forward(self, x):
            return self.b(self.a(x))

    ep = agrees_with_eager(peer, A(), (torch.ones(2, 3),))
    return sorted(ep.state_dict), sorted(n for n, _ in ep.module().named_parameters())


def const_requires_grad(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.c = torch.ones(3, requires_grad=True)

        def forward(self, x):
            return x * self.c

    ep = peer.export(A(), (torch.ones(3),))
    return [v.requires_grad for v in ep.constants.values()]


def bare_script_module(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.jit.script(nn.Linear(3, 2))._c

        def forward(self, x):
            return self.inner.forward(x * 2)

    ep = agrees_with_eager(peer, A(), (torch.ones(2, 3),))
    return sorted(ep.constants), operators(ep)
