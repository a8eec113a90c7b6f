"""After a tracing session the process is as it was, whatever happened inside."""

import gc
import threading

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from precast.trace.capture import capture
from precast.trace.session import tracing_session


def misbehave() -> None:
    torch.manual_seed(99)
    torch.rand(3)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float64)
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float16)
    torch.autograd.set_multithreading_enabled(True)
    raise KeyError("the user's own error")


def observed_state() -> list[object]:
    return [
        torch.get_rng_state().tolist(),
        torch.is_grad_enabled(),
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu"),
        torch.get_autocast_dtype("cpu"),
        torch.is_autocast_cache_enabled(),
        torch.compiler.is_compiling(),
        torch.compiler.is_exporting(),
        torch._C._is_multithreading_enabled(),
        torch.is_inference_mode_enabled(),
        gc.isenabled(),
    ]


def run_misbehaving() -> None:
    with tracing_session():
        misbehave()


def test_modes_come_back_after_an_exception():
    before = observed_state()
    with pytest.raises(KeyError):
        run_misbehaving()
    assert observed_state() == before


def test_modes_come_back_after_a_capture_that_raises():
    def function(x):
        misbehave()
        return x

    before = observed_state()
    with pytest.raises(KeyError, match="the user's own error"):
        capture(function, (torch.ones(2),))
    assert observed_state() == before


def test_modes_come_back_after_a_capture_that_works():
    def function(x):
        torch.set_grad_enabled(False)
        torch.set_default_dtype(torch.float64)
        return x + torch.rand(2)

    before = observed_state()
    capture(function, (torch.ones(2),))
    assert observed_state() == before


def test_patched_functions_come_back():
    from torch.fx.experimental.proxy_tensor import PythonKeyTracer

    def patched() -> list[object]:
        return [
            torch.nn.Module.__setattr__,
            torch.nn.Module._call_impl,
            torch.autograd.Function.__dict__["apply"],
            PythonKeyTracer.create_node,
            torch._C._select_conv_backend,
        ]

    def function(x):
        torch.nn.functional.conv2d(x, x)
        raise KeyError

    before = patched()
    with pytest.raises(KeyError):
        capture(function, (torch.ones(2, 3, 4, 4),))
    assert patched() == before


def test_global_module_hooks_come_back():
    hooks = torch.nn.modules.module
    with pytest.raises(ZeroDivisionError):
        capture(lambda x: 1 / 0, (torch.ones(2),))
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


def test_libraries_see_that_they_are_compiled():
    program = capture(lambda x: (torch.compiler.is_compiling(), torch.compiler.is_exporting(), x), (torch.ones(2),))
    assert [spec.arg.value for spec in program.signature.outputs[:2]] == [True, True]


def test_saved_tensor_hooks_of_the_surroundings_wait_outside():
    packed = []

    def pack(tensor):
        packed.append(tensor)
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        capture(lambda x: (x * x).sum(), (torch.ones(2, requires_grad=True),))
        assert packed == []
        (torch.ones(2, requires_grad=True) ** 2).sum()
        assert len(packed) == 1


def test_saved_tensor_hooks_come_back_after_an_exception():
    with saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        before = torch._C._autograd._top_saved_tensors_default_hooks(True)
        with pytest.raises(KeyError):
            run_misbehaving()
        assert torch._C._autograd._top_saved_tensors_default_hooks(True) == before


def test_a_second_thread_waits_for_the_first():
    order = []
    inside, may_leave = threading.Event(), threading.Event()

    def first() -> None:
        with tracing_session():
            inside.set()
            may_leave.wait(10)
            order.append("first")

    def second() -> None:
        inside.wait(10)
        may_leave.set()
        with tracing_session():
            order.append("second")

    threads = [threading.Thread(target=run) for run in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert order == ["first", "second"]


def test_sessions_nest():
    with tracing_session(), tracing_session():
        assert torch.compiler.is_compiling()
    assert not torch.compiler.is_compiling()
