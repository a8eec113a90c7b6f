"""What every compiler has, and what stands for one."""

import pickle

import pytest
import torch

import precast
from precast.autograd.compilers_in_use import CompilersInUse
from precast.backend import Backend, Compiler, FunctionCompiler, as_compiler
from precast.compilers import nop
from precast.errors import InputTypeError
from precast.options import Options


class Plain(Compiler):
    def __call__(self, graph_module, example_inputs):
        return graph_module


class Drawing(Plain):
    """Has a generator of its own, unless it was asked to go without."""

    def __init__(self, source="own"):
        self.source = source

    def random_source(self):
        return self.source

    def drawing_as_torch(self):
        return Drawing("eager")


def test_a_compiler_without_a_call_is_refused():
    class Nothing(Compiler):
        pass

    with pytest.raises(TypeError, match="__call__"):
        Nothing()


def test_by_default_a_compiler_does_no_more_than_compile():
    compiler = Plain()
    assert compiler.with_options(Options()) is compiler.drawing_as_torch() is compiler
    assert (compiler.cache_key, compiler.options, compiler.holds_state()) == (None, None, False)
    assert compiler.random_source() == "eager"
    assert compiler.start("graph", [])() == "graph"
    assert compiler.store_alone("graph") is None
    assert compiler.get_ready([]) is None


@pytest.mark.parametrize("arguments", [("store", "graph"), ("restore", b"", None, ()), ("restore_alone", b"")])
def test_what_has_no_default_names_the_compiler(arguments):
    method, *others = arguments
    with pytest.raises(NotImplementedError, match=f"Plain has no {method}"):
        getattr(Plain(), method)(*others)


def test_what_a_compiler_defines_is_told_from_defaults():
    class Storing(Plain):
        def store(self, compiled):
            return None

    assert Storing().defines("store")
    assert not Storing().defines("store", "restore")


def test_a_function_stands_for_a_compiler():
    compiler = as_compiler(nop)
    assert as_compiler(compiler) is compiler
    assert compiler("graph", []) == "graph"
    assert compiler.qualified_name == "precast.debug.unchanged.nop"
    assert not any(compiler.defines(name) for name in ("store", "restore", "start", "store_alone"))


def test_a_function_as_a_compiler_is_pickled_and_copied():
    again = pickle.loads(pickle.dumps(as_compiler(nop)))
    assert isinstance(again, FunctionCompiler)
    assert again.function is nop


@pytest.mark.parametrize(
    "act", [lambda: precast.register_backend("mine")(Plain), lambda: precast.aot_function(torch.sin, Plain)]
)
def test_a_class_in_the_place_of_its_object_is_refused(act):
    with pytest.raises(InputTypeError, match=r"pass an object: Plain\(\)"):
        act()


def test_missing_compilers_are_the_forwards():
    compilers = CompilersInUse.of(nop, None, None)
    assert compilers.forward is compilers.backward is compilers.inference


def test_two_generators_give_way_to_torchs():
    compilers = CompilersInUse.of(Drawing(), nop, None)
    assert compilers.forward.random_source() == compilers.backward.random_source() == "eager"
    alike = CompilersInUse.of(Drawing(), Drawing(), None)
    assert alike.forward.random_source() == "own"


def test_every_compiler_of_a_backend_is_told_the_options():
    class Configured(Plain):
        def __init__(self, options=None):
            self.options = options

        def with_options(self, options):
            return Configured(options)

    options = Options(cache_bytes=0)
    backend = Backend("mine", Configured(), bw_compiler=Configured(), inference_compiler=Configured())
    compilers = CompilersInUse.of_backend(backend, options)
    assert all(each.options is options for each in (compilers.forward, compilers.backward, compilers.inference))


def test_the_forwards_compiler_is_told_when_a_trace_begins():
    class Ready(Plain):
        def __init__(self):
            self.states = []

        def get_ready(self, state):
            self.states.append(list(state))

    compiler, linear = Ready(), torch.nn.Linear(2, 2)
    precast.compile(linear, backend=compiler)(torch.ones(2))
    (state,) = compiler.states
    assert all(ours is own for ours, own in zip(state, linear.parameters(), strict=True))
