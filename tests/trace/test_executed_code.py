import gc
import os
import sys

import pytest

from precast.trace.executed_code import noted_code, run_watched


def outer(x):
    return inner(x) + 1


def inner(x):
    return x * 2


def watch(function, *args):
    seen = []
    with noted_code(lambda executed: seen.append(executed.code.co_name)) as executed:
        result = run_watched(function, args, {})
    return result, seen, executed.is_complete


def test_functions_are_told_once_each_in_the_order_they_run():
    assert watch(lambda: outer(1) + outer(2)) == (8, ["<lambda>", "outer", "inner"], True)


def test_only_the_first_run_is_watched():
    with noted_code(lambda executed: None) as executed:
        run_watched(inner, (1,), {})
        run_watched(outer, (1,), {})
    assert [each.code.co_name for each in executed.seen.values()] == ["inner"]


def test_what_an_import_runs_is_not_told(tmp_path, monkeypatch):
    (tmp_path / "imported_while_watched.py").write_text("def made():\n    return 1\n\nvalue = made()\n")
    monkeypatch.syspath_prepend(tmp_path)

    def run():
        import imported_while_watched

        return imported_while_watched.value

    value, seen, _ = watch(run)
    assert value == 1
    assert "made" not in seen


def test_what_the_collector_runs_is_not_told():
    class Leftover:
        def __del__(self):
            return None

    def run():
        for _ in range(2000):
            _ = [[]]
        return 0

    leftover = Leftover()
    leftover.itself = leftover
    del leftover
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        assert watch(run)[1] == ["run"]
        assert gc.isenabled()
    finally:
        gc.set_threshold(*before)


def test_a_debugger_is_left_alone():
    def debugger(frame, event, argument):
        return None

    before = sys.gettrace()
    sys.settrace(debugger)
    try:
        result, seen, is_complete = watch(inner, 2)
        assert sys.gettrace() is debugger
    finally:
        sys.settrace(before)
    assert (result, seen, is_complete) == (4, [], False)


def test_after_an_error_nothing_is_watched_any_more():
    with noted_code(lambda executed: None) as executed, pytest.raises(ZeroDivisionError):
        run_watched(lambda: 1 / 0, (), {})
    assert not executed.is_complete
    assert sys.gettrace() is None


def test_the_environment_is_told_of_unless_tracing_looks_for_devices_there():
    def read():
        return os.environ.get("HOME")

    # As fake tensors ask torch.cuda.
    machinery = {"__name__": "torch._subclasses.fake_tensor"}
    exec("def ask(): return is_available()\n", machinery)
    devices = {"__name__": "torch.cuda", "os": os}
    exec("def is_available(): return os.environ.get('HOME')\n", devices)
    machinery["is_available"] = devices["is_available"]
    assert "__getitem__" in watch(read)[1]
    assert "__getitem__" in watch(devices["is_available"])[1]
    assert "__getitem__" not in watch(machinery["ask"])[1]
