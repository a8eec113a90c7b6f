import os
import random
import subprocess
import sys
import warnings

import pytest
import torch

import precast
from precast import Compiler
from precast.autograd import aot_function
from precast.cache import CacheWarning, open_store
from precast.errors import InputTypeError
from precast.options import Options
from tests.autograd.storing_compiler import StoringCompiler
from tests.repository.sources import ROOT


@pytest.fixture
def options(tmp_path):
    return Options(cache_directory=tmp_path / "cache")


@pytest.fixture
def told():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CacheWarning)
        yield caught


def model(x, weight):
    return (x @ weight).sin().sum() * torch.tensor(3.0)


def gradients(function, *, rows=4):
    """What a training step gives, for comparing."""
    x = torch.linspace(0, 1, rows * 3).view(rows, 3).requires_grad_()
    weight = torch.linspace(-1, 1, 6).view(3, 2).requires_grad_()
    loss = function(x, weight)
    loss.backward()
    return torch.cat([loss.detach().view(1), x.grad.view(-1), weight.grad.view(-1)])


def run(options, *, function=model, dynamic=False, rows=4, **settings):
    """Compile as a new process would, check the numbers, and give the compiler."""
    compiler = StoringCompiler(options, **settings)
    torch.testing.assert_close(
        gradients(aot_function(function, compiler, dynamic=dynamic), rows=rows), gradients(function, rows=rows)
    )
    return compiler


def counts(compiler):
    return compiler.compiled, compiler.restored


def test_the_second_compilation_is_read_from_disk(options):
    assert counts(run(options)) == (2, 0)
    assert counts(run(options)) == (0, 2)


def test_each_of_several_graphs_is_its_own_entry(options):
    run(options)
    with torch.no_grad():
        compiler = StoringCompiler(options)
        aot_function(model, compiler)(torch.ones(4, 3), torch.ones(3, 2))
    assert compiler.compiled == 1
    assert open_store(options).info().entries == 3


def test_another_program_is_compiled(options):
    run(options)
    assert counts(run(options, function=lambda x, weight: model(x, weight) * 2)) == (2, 0)
    assert counts(run(options, rows=5)) == (2, 0)
    assert counts(run(options, cache_key="2")) == (2, 0)


def test_the_same_program_written_elsewhere_is_not(options):
    run(options)
    assert counts(run(options, function=lambda a, b: torch.matmul(a, b).sin().sum() * torch.tensor(3.0))) == (0, 2)


def test_free_sizes_are_restored_for_whatever_sizes_come(options):
    assert counts(run(options, dynamic=True)) == (2, 0)
    assert counts(run(options, dynamic=True, rows=7)) == (0, 2)


def test_a_constant_of_another_value_is_another_program(options):
    run(options)
    assert run(options, function=lambda x, weight: (x @ weight).sin().sum() * torch.tensor(4.0)).compiled > 0


def test_a_compiler_that_says_nothing_is_called_every_time(options):
    calls = []

    def compiler(graph_module, example_inputs):
        calls.append(graph_module)
        return graph_module

    for _ in range(2):
        gradients(aot_function(model, compiler))
    assert len(calls) == 4


def test_a_function_can_carry_what_a_storing_compiler_has(options):
    storing = StoringCompiler(options)

    def compiler(graph_module, example_inputs):
        return storing(graph_module, example_inputs)

    compiler.cache_key, compiler.options = "a function", options
    compiler.store, compiler.restore = storing.store, storing.restore
    for _ in range(2):
        gradients(aot_function(model, compiler))
    assert counts(storing) == (2, 2)


class NotDerived:
    """Has what a storing compiler has, and is none by its class."""

    cache_key = "not derived"
    compiled = restored = 0

    def with_options(self, options):
        self.options = options
        return self

    __call__, store, restore = StoringCompiler.__call__, StoringCompiler.store, StoringCompiler.restore


def test_an_object_can_have_what_a_storing_compiler_has(options):
    compiler = NotDerived()
    compiler.written = []
    for _ in range(2):
        gradients(precast.compile(model, backend=compiler, options=options))
    assert counts(compiler) == (2, 2)


class Whole(Compiler):
    cache_key = "whole"

    def __call__(self, graph_module, example_inputs):
        return graph_module

    def store(self, compiled):
        return b""

    def restore(self, data, graph_module, example_inputs):
        return graph_module


class WithoutStore(Whole):
    store = Compiler.store


class WithoutRestore(Whole):
    restore = Compiler.restore


class WithoutRestoreAlone(Whole):
    def store_alone(self, compiled):
        return b""


class WithoutText(Whole):
    cache_key = 3


def like_a_compiler(graph_module, example_inputs):
    return graph_module


like_a_compiler.cache_key, like_a_compiler.restore = "by halves", Whole().restore


@pytest.mark.parametrize(
    ("compiler", "missing"),
    [
        (WithoutStore(), "WithoutStore.* no store"),
        (WithoutRestore(), "WithoutRestore.* no restore"),
        (WithoutRestoreAlone(), "WithoutRestoreAlone.* no restore_alone"),
        (WithoutText(), "cache_key is 3"),
        (like_a_compiler, "like_a_compiler.* no store"),
    ],
)
def test_a_compiler_that_says_it_by_halves_is_refused(compiler, missing):
    with pytest.raises(InputTypeError, match=f"(?s){missing}"):
        gradients(aot_function(model, compiler))


def test_a_result_that_cannot_be_stored_is_used_all_the_same(options, monkeypatch):
    monkeypatch.setattr(StoringCompiler, "store", lambda self, compiled: None)
    assert counts(run(options)) == counts(run(options)) == (2, 0)


def test_a_result_that_restores_no_more_is_compiled_anew_with_a_warning(options, told, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(StoringCompiler, "store", lambda self, compiled: b'{"source": "of no use"}')
        run(options)
    assert counts(run(options)) == (2, 0)
    assert len(told) == 2
    assert counts(run(options)) == (0, 2)


def test_a_compiler_that_puts_conditions_on_sizes_is_not_cached(options, monkeypatch):
    compile_plainly = StoringCompiler.__call__

    def compile_for_many_rows(self, graph_module, example_inputs):
        assert any(
            bool(size > 3) for value in example_inputs if isinstance(value, torch.Tensor) for size in value.shape
        )
        return compile_plainly(self, graph_module, example_inputs)

    monkeypatch.setattr(StoringCompiler, "__call__", compile_for_many_rows)
    assert counts(run(options, dynamic=True)) == (2, 0)
    # The forward was the one to ask; the backward found the condition there already.
    assert counts(run(options, dynamic=True)) == (1, 1)


def test_what_words_cannot_tell_is_compiled_without_the_cache(options, monkeypatch):
    monkeypatch.setattr("precast.autograd.compile_cache._KNOWN_MODULES", ())
    monkeypatch.setattr("precast.autograd.compile_cache._NAMED", ())
    assert counts(run(options, function=lambda x, weight: (x @ weight).double().sum())) == (2, 0)
    assert open_store(options).info().entries == 0


def test_damaged_entries_never_give_wrong_numbers(options, told):
    chance = random.Random(0)
    run(options)
    for _ in range(20):
        path = chance.choice(sorted(options.cache_directory.rglob("graphs/*/*")))
        data = bytearray(path.read_bytes())
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        path.write_bytes(data)
        assert counts(run(options)) == (1, 1)
    assert len(told) == 20


def test_a_folder_that_cannot_be_used_costs_a_warning_and_time(tmp_path, told):
    (tmp_path / "file").write_text("")
    options = Options(cache_directory=tmp_path / "file")
    assert counts(run(options)) == counts(run(options)) == (2, 0)
    assert len(told) == 1


PROGRAM = """
import os, sys
import torch
from precast.options import Options
from tests.autograd.test_compile_cache import run
options = Options(cache_directory=sys.argv[1])
torch.set_num_threads(1)
"""
ONCE = "compiler = run(options, dynamic=True); print(compiler.compiled, compiler.restored)"
# The children start together, as near as can be: they wait until the pipe is closed.
AT_ONCE = """
waiting, go = os.pipe()
children = []
for _ in range(16):
    if not (child := os.fork()):
        os.close(go)
        os.read(waiting, 1)
        run(options)
        os._exit(0)
    children.append(child)
os.close(go)
print([os.waitpid(child, 0)[1] for child in children])
"""


def in_new_process(code, directory, *, seed="0"):
    environment = os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "error::precast.cache.CacheWarning", "-c", PROGRAM + code, str(directory)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def test_another_process_reads_what_the_first_one_wrote(tmp_path):
    assert in_new_process(ONCE, tmp_path, seed="1") == "2 0"
    assert in_new_process(ONCE, tmp_path, seed="2") == "0 2"


@pytest.mark.slow
def test_sixteen_processes_compile_the_same_at_once(tmp_path):
    assert in_new_process(AT_ONCE, tmp_path) == str([0] * 16)
    assert counts(run(Options(cache_directory=tmp_path))) == (0, 2)


class StartingCompiler(StoringCompiler):
    """Notes when it is given a graph and when it is waited for."""

    def start(self, graph_module, example_inputs):
        self.order = [*getattr(self, "order", []), "given"]
        compiled = self(graph_module, example_inputs)

        def finish():
            self.order.append("waited for")
            return compiled

        return finish


def test_a_compiler_that_gives_way_is_given_both_graphs_before_it_is_waited_for(options):
    compiler = StartingCompiler(options)
    torch.testing.assert_close(gradients(aot_function(model, compiler)), gradients(model))
    assert compiler.order == ["given", "given", "waited for", "waited for"]
    assert len(compiler.written) == 2
