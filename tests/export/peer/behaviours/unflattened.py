"""Unflattened modules."""

import sys
import types

import torch
from torch import nn

from tests.export.peer.asking import agrees_with_eager, assert_close


class _NB(nn.Module):
    def forward(self, x, b):
        return x + 1 if b else x + 2


class _Leaf(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        return self.linear(x)


class _Bar(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf = _Leaf()
        self.buffer = nn.Buffer(torch.randn(4, 4))

    def forward(self, x):
        return self.buffer.sum() + self.leaf(x).sum()


class _BarD(nn.Module):
    def __init__(self):
        super().__init__()
        self.leaf = _Leaf()

    def forward(self, x):
        return self.leaf(x).sum() + self.leaf(x).sum()


def malformed_fqn(peer):
    class B(nn.Module):
        def __init__(self):
            super().__init__()
            self.to_out = nn.ModuleList([nn.Linear(4, 4), nn.Dropout(0.5)])

        def forward(self, x):
            for part in self.to_out:
                x = part(x)
            return x

    class Q(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = nn.ModuleList([B() for _ in range(5)])

        def forward(self, x):
            x = self.blocks[0](x)
            for m in self.blocks[1:4]:
                x = m(x)
            return x

    m = Q()
    for k in ("1", "3"):
        b = m.blocks.get_submodule(k)
        b._orig_forward = b.forward
        b.forward = types.MethodType(lambda self, *a: self._orig_forward(*a), b)
    peer.unflatten(peer.export(m, (torch.rand(4, 4),)))


def unflatten_isinstance(peer):
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.n = _NB()

        def forward(self, x):
            return self.n(x + 1, True) + self.n(x + 1, False)

    u = peer.unflatten(peer.export(A(), (torch.zeros(4),), preserve_module_call_signature=("n",)))
    assert_close(u(torch.zeros(4)), torch.zeros(4) + 5)
    return [m.type_name() for f, m in u.named_modules(remove_duplicate=False) if f == "n"]


def unflatten_asserts(peer):
    class M1(nn.Module):
        def forward(self, x, y):
            b = x.item()
            torch._check_is_size(b)
            torch._check(b < y.size(0))
            return y[:b]

    class M2(nn.Module):
        def __init__(self):
            super().__init__()
            self.m1 = M1()
            self.m3 = M1()

        def forward(self, x, y):
            return self.m1(x, y) + self.m3(x, y)

    a = (torch.tensor(3), torch.randn(10))
    ep = peer.export(M2(), a, dynamic_shapes={"x": None, "y": (peer.Dim("moo"),)})
    assert_close(ep.module()(*a), M2()(*a))
    assert_close(peer.unflatten(ep)(*a), M2()(*a))


def swap_placeholder_update(peer):
    class C(nn.Module):
        def forward(self, x):
            torch.ops.aten.dropout_(x, 0.5, False)
            return x - 2

    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = C()

        def forward(self, x):
            return self.child(x) + x * 4

    ep = peer.export(A(), (torch.ones(3, 10),), preserve_module_call_signature=("child",))
    u = peer.unflatten(ep)
    r = A()(torch.ones(3, 10))
    assert_close(ep.module()(torch.ones(3, 10)), r)
    u.set_submodule("child", C())
    assert_close(u(torch.ones(3, 10)), r)


def swap_cousin(peer):
    class G(nn.Module):
        def forward(self, x):
            a = x.to(torch.float32)
            return x + 4, a

    class C(nn.Module):
        def __init__(self):
            super().__init__()
            self.grandchild = G()

        def forward(self, x):
            y, a = self.grandchild(x)
            return y + a

    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = C()
            self.other = C()

        def forward(self, x):
            return self.child(x) + self.other(x)

    x = torch.ones(2, 3)
    ep = peer.export(A(), (x,), preserve_module_call_signature=("child",))
    u = peer.unflatten(ep)
    u.set_submodule("child", C())
    assert_close(u(x), A()(x))


def swap_buffer_update(peer):
    """The caller reads a buffer between calls that update it, and so do those of an exchanged submodule."""

    class C(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("buf", torch.tensor(10))

        def forward(self, x):
            self.buf.add_(1)
            return x + 2

    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = C()

        def forward(self, x):
            for _ in range(3):
                x = self.child(x) + self.child.buf
            return x

    x = torch.ones(2, 3)
    u = peer.unflatten(peer.export(A(), (x,), preserve_module_call_signature=("child",)))
    u.set_submodule("child", C())
    assert_close(u(x), A()(x))
    return u.child.buf.item()


def module_stack(peer):
    class Foo(nn.Module):
        def __init__(self):
            super().__init__()
            self.bar = _Bar()
            self.bar_different = _BarD()

        def forward(self, x):
            y = self.bar.buffer + x
            return self.bar(x) + self.bar_different(x + 2), y.sum()

    m = Foo()
    x = torch.randn(4, 4)
    ep = peer.export(m, (x,))
    u = peer.unflatten(ep)
    assert_close(u(x), m(x))
    assert_close(peer.unflatten(ep.run_decompositions())(x), m(x))
    return [str(u.bar.leaf.linear.graph), str(u.bar_different.leaf.linear.graph)]


def module_list_shared(peer):
    part = nn.Linear(3, 3)
    m = nn.Sequential(part, nn.ReLU(), part)
    ep = agrees_with_eager(peer, m, (torch.ones(2, 3),))
    u = peer.unflatten(ep)
    assert_close(u(torch.ones(2, 3)), m(torch.ones(2, 3)))
    return sorted(ep.state_dict)


def interpreter_modules(peer):
    """Submodules are of a class that is known by name; those that take turns, of another."""

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.leaf, self.by_flag = nn.Linear(4, 4), _NB()

        def forward(self, x):
            return self.by_flag(self.by_flag(self.leaf(x), True), False)

    program = peer.export(Twice(), (torch.ones(2, 4),), preserve_module_call_signature=("by_flag",))
    unflattened = peer.unflatten(program)
    home = sys.modules[f"{peer.__name__}.unflatten"]
    assert isinstance(unflattened.leaf, home.InterpreterModule)
    assert isinstance(unflattened.by_flag, home.InterpreterModuleDispatcher)
    return len(unflattened.by_flag.call_modules()), unflattened.leaf.type_name()
