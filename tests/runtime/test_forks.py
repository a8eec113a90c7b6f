"""A forked child of a process that used compiled code in many threads gets its answers."""

import os
import subprocess
import sys
import textwrap

import pytest
import torch

import precast

_START = """
    import multiprocessing, os, signal, sys, threading, warnings
    warnings.simplefilter("ignore", DeprecationWarning)

    def in_fork(answer):
        pid = os.fork()
        if pid == 0:
            # A child that waits forever ends the test.
            signal.alarm(60)
            os._exit(0 if answer() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, "no answer, or a wrong one"

    def in_process(answer):
        child = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(0 if answer() else 1))
        child.start()
        child.join(60)
        assert child.exitcode == 0, "no answer, or a wrong one"
"""
_COMPILED = """
    import torch
    import precast

    torch.set_num_threads(2)
    x = torch.randn(512, 256)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.LayerNorm(256))
    compiled = precast.compile(model)
    expected = compiled(x).detach()

    def trained():
        result = compiled(x)
        result.sum().backward()
        return torch.allclose(result, expected, 1e-4, 1e-4) and model[0].weight.grad is not None

    def in_eager():
        return torch.allclose(model(x), expected, 1e-4, 1e-4)

    def anew():
        return torch.allclose(precast.compile(lambda x: x.exp().softmax(1))(x), x.exp().softmax(1), 1e-4, 1e-4)

    def by_another_thread():
        answers = []
        thread = threading.Thread(target=lambda: answers.append(trained()))
        thread.start()
        thread.join()
        return answers == [True]

    for answer in (trained, in_eager, anew, by_another_thread):
        in_fork(answer)
    in_process(trained)
    assert trained()
"""
_WHILE_COMPILING = """
    import torch
    import precast

    started, finished = threading.Event(), threading.Event()

    def slow(graph_module, inputs):
        started.set()
        finished.wait()
        return graph_module.forward

    @precast.compile(backend=slow)
    def function(x):
        return x * 2

    thread = threading.Thread(target=function, args=(torch.ones(2),))
    thread.start()
    started.wait()

    def answer():
        finished.set()
        return torch.equal(function(torch.ones(2)), torch.full((2,), 2.0))

    in_fork(answer)
    finished.set()
    thread.join()
"""
_PACKAGED = """
    sys.modules["torch"] = None
    import numpy
    import precast.runtime

    x = numpy.random.default_rng(0).standard_normal((512, 256), dtype=numpy.float32)
    model = precast.runtime.load(PATH, threads=2)
    expected = model(x)

    def again():
        return numpy.allclose(model(x), expected, 1e-4, 1e-4)

    def opened_there():
        return numpy.allclose(precast.runtime.load(PATH, threads=2)(x), expected, 1e-4, 1e-4)

    for answer in (again, opened_there):
        in_fork(answer)
        in_process(answer)
    assert again()
"""


def _run(program, **environment):
    command = [sys.executable, "-c", textwrap.dedent(_START) + textwrap.dedent(program)]
    ran = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("program", [_COMPILED, _WHILE_COMPILING])
def test_a_child_gets_answers_of_compiled_code(program):
    _run(program, OMP_NUM_THREADS="2")


def test_a_child_gets_answers_of_a_package(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.LayerNorm(256)).eval()
    path = precast.package(model, (torch.randn(512, 256),), path=tmp_path / "model.precast")
    _run(_PACKAGED.replace("PATH", repr(str(path))), OMP_NUM_THREADS="2")
