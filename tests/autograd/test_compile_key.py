"""Everything that decides what a compiler makes is in the key, and nothing else is."""

import dataclasses
import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import fx

import precast
from precast.autograd import compile_cache
from precast.autograd.compile_cache import compile_key
from precast.autograd.guards.sizes import SizeNames
from precast.cache import Indescribable
from precast.graph.sizes import SizeRange
from precast.options import Options
from precast.trace.fake_inputs import DynamicSize, FakeInputs
from tests.autograd.hand_made_graphs import BINARY, UNARY, Recipe, Step, aten, finish, follow
from tests.autograd.storing_compiler import StoringCompiler

SINE = Recipe((Step(aten.sin.default, 0),))


def key_of(module, examples=(), *, storing=None, **options):
    options = Options(**options)
    return compile_key(storing or StoringCompiler(options), module, list(examples), options, SizeNames())


def key_of_recipe(recipe, **others):
    return key_of(*follow(recipe), **others)


NUMBERS = st.sampled_from([0, 1, 2, True, False, 0.0, -0.0, 1.0, 0.1, math.nan, math.inf, -math.inf, 1 + 0j])


@st.composite
def recipes(draw):
    steps = []
    for number in range(draw(st.integers(0, 4))):
        value = st.integers(0, number)
        match draw(st.sampled_from(["unary", "number", "binary"])):
            case "unary":
                steps.append(Step(draw(st.sampled_from(UNARY)), draw(value)))
            case "number":
                steps.append(Step(draw(st.sampled_from(BINARY)), draw(value), number=draw(NUMBERS)))
            case "binary":
                steps.append(Step(draw(st.sampled_from(BINARY)), draw(value), draw(value)))
    results = draw(st.lists(st.integers(0, len(steps)), max_size=2).map(tuple))
    shape, strides = draw(st.sampled_from([((2, 3), None), ((3, 2), None), ((2, 3), (1, 2)), ((6,), None), ((), None)]))
    dtype = draw(st.sampled_from([torch.float32, torch.complex64]))
    return Recipe(tuple(steps), shape, strides, dtype, draw(st.sampled_from(["cpu", "meta"])), results=results)


@given(recipes(), recipes())
@settings(deadline=None, max_examples=200)
def test_keys_are_equal_just_when_the_graphs_are(first, second):
    # By their text, since Python takes 1, 1.0 and True for equal, and 0.0 and -0.0 too.
    assert (key_of_recipe(first) == key_of_recipe(second)) == (repr(first) == repr(second))


@given(recipes())
@settings(deadline=None, max_examples=50)
def test_names_of_nodes_do_not_count(recipe):
    assert key_of(*follow(recipe, "value")) == key_of(*follow(recipe, "other"))


@pytest.mark.parametrize(
    "change",
    [
        {"shape": (3, 2)},
        {"strides": (1, 2)},
        {"offset": 4},
        {"dtype": torch.float64},
        {"device": "meta"},
        {"requires_grad": True},
        {"results": (0,)},
        {"results": (-1, -1)},
        {"steps": (Step(aten.cos.default, 0),)},
        {"steps": (*SINE.steps, Step(aten.cos.default, 0))},
    ],
    ids=str,
)
def test_what_changes_the_graph_or_its_inputs_changes_the_key(change):
    assert key_of_recipe(dataclasses.replace(SINE, **change)) != key_of_recipe(SINE)


@pytest.mark.parametrize(("option", "value"), [("random", "eager"), ("compiler", "clang++"), ("debug", True)])
def test_options_change_the_key(option, value):
    assert key_of_recipe(SINE, **{option: value}) != key_of_recipe(SINE)


@pytest.mark.parametrize(("option", "value"), [("cache_directory", "elsewhere"), ("cache_bytes", 1), ("verify", False)])
def test_where_results_are_kept_and_how_they_are_checked_does_not_change_the_key(option, value):
    assert key_of_recipe(SINE, **{option: value}) == key_of_recipe(SINE)


@pytest.mark.parametrize(
    ("owner", "name", "value"),
    [
        (compile_cache, "__version__", "another"),
        (compile_cache, "processor_identity", lambda: "another"),
        (torch, "__version__", "another"),
        (torch.version, "git_version", "another"),
        (torch, "get_default_dtype", lambda: torch.float64),
        (torch, "are_deterministic_algorithms_enabled", lambda: True),
        (compile_cache, "float32_precision", lambda: ("tf32",)),
    ],
)
def test_what_surrounds_the_compiler_changes_the_key(monkeypatch, owner, name, value):
    before = key_of_recipe(SINE)
    monkeypatch.setattr(owner, name, value)
    assert key_of_recipe(SINE) != before


def test_precision_may_be_set_by_either_api():
    before, matmul = key_of_recipe(SINE), torch.backends.cuda.matmul
    usual = matmul.fp32_precision
    try:
        matmul.fp32_precision = "tf32"
        assert key_of_recipe(SINE) != before
        assert precast.compile(torch.sin)(torch.zeros(2)).tolist() == [0, 0]
    finally:
        matmul.fp32_precision = usual


def test_the_python_version_changes_the_key(monkeypatch):
    before = key_of_recipe(SINE)
    monkeypatch.setattr(compile_cache, "sys", SimpleNamespace(modules={}, version_info=(4, 0)))
    assert key_of_recipe(SINE) != before


def test_the_compiler_changes_the_key(monkeypatch):
    class AnotherCompiler(StoringCompiler):
        pass

    options = Options()
    compilers = [StoringCompiler(options), StoringCompiler(options, "2"), AnotherCompiler(options)]
    keys = {key_of_recipe(SINE, storing=compiler) for compiler in compilers}
    monkeypatch.setitem(compile_cache.sys.modules, "tests", SimpleNamespace(__version__="another"))
    keys.add(key_of_recipe(SINE, storing=compilers[0]))
    assert len(keys) == 4


def graph_with_attribute(value, target=None):
    graph = fx.Graph()
    node = graph.get_attr("held")
    node.meta["val"] = None
    graph.output((node if target is None else graph.call_function(target, (node,)),))
    root = torch.nn.Module()
    root.held = value
    return fx.GraphModule(root, graph)


def test_the_contents_of_constants_count():
    values = [
        torch.zeros(3),
        torch.ones(3),
        torch.zeros(3, dtype=torch.bfloat16),
        torch.zeros(3, 1),
        torch.zeros(0),
        torch.tensor(0.0),
        torch.tensor(-0.0),
        torch.arange(6.0).view(2, 3),
        torch.arange(6.0).view(3, 2).t(),
        torch.nn.Parameter(torch.zeros(3)),
    ]
    assert len({key_of(graph_with_attribute(value)) for value in values}) == len(values)
    assert key_of(graph_with_attribute(torch.ones(3))) == key_of(graph_with_attribute(torch.ones(3)))


def test_graphs_of_branches_count():
    sine, cosine = (follow(Recipe((Step(target, 0),)))[0] for target in UNARY)
    sine_again, _ = follow(SINE, "other")
    keys = [key_of(graph_with_attribute(inner, torch.ops.higher_order.cond)) for inner in (sine, cosine, sine_again)]
    assert keys[0] != keys[1]
    assert keys[0] == keys[2]


def graph_of(target, *arguments):
    graph = fx.Graph()
    node = graph.call_function(target)
    graph.output((node,))
    module = fx.GraphModule(torch.nn.Module(), graph)
    node.args = arguments  # only now, since not all of them can be printed as code
    return module


@pytest.mark.parametrize(
    "module",
    [
        graph_of(lambda: 1),
        graph_of(follow),
        graph_of(torch.ops.higher_order.hints_wrapper),
        graph_of(torch.sym_max, torch.Generator()),
        graph_with_attribute(object()),
        graph_with_attribute(torch.nn.Linear(2, 2)),
        graph_with_attribute(torch.ones(2).to_sparse()),
        graph_with_attribute(torch.ones(2, dtype=torch.complex64).conj()),
        graph_with_attribute(follow(SINE)[1][0]),
    ],
    ids=["lambda", "function", "higher order", "object", "attribute", "module", "sparse", "conjugate", "fake"],
)
def test_what_words_cannot_tell_is_not_cached(module):
    with pytest.raises(Indescribable):
        key_of(module)


def test_nodes_that_call_modules_are_not_cached():
    graph = fx.Graph()
    graph.output((graph.call_module("held"),))
    root = torch.nn.Module()
    root.held = torch.nn.Linear(2, 2)
    with pytest.raises(Indescribable):
        key_of(fx.GraphModule(root, graph))


def test_arguments_are_told_apart():
    arguments = [
        None, 1, "1", [1], (1,), {"a": 1}, {"a": 2}, slice(1), slice(None, 1, 1), torch.float32, "torch.float32",
        torch.device("cpu"), torch.strided, torch.contiguous_format, torch.sym_max, aten.sin.default,
    ]  # fmt: skip
    assert len({key_of(graph_of(torch.sym_max, argument)) for argument in arguments}) == len(arguments)


def dynamic_key(*, roots=("rows", "columns"), ranges=(None, None), sizes=lambda a, b: (a, b), ask=lambda a, b: None):
    """The key of a sine over a tensor whose sizes are made of two free ones."""
    fakes = FakeInputs()
    for root, size_range, example in zip(roots, ranges, (8, 9), strict=True):
        fakes.declare(root, example=example, seen_at=root, size_range=size_range)
    rows, columns = (fakes.size(DynamicSize(root), 0) for root in roots)
    ask(rows, columns)
    with fakes.mode:
        example = torch.empty(sizes(rows, columns))
        return key_of(finish(SINE, example), [example])


@pytest.mark.parametrize("sizes", [lambda a, b: (a, b), lambda a, b: (a, b, a * 2 + b, a // b, torch.sym_max(a, b))])
def test_names_of_sizes_do_not_count(sizes):
    keys = {
        dynamic_key(roots=roots, sizes=sizes) for roots in [("rows", "columns"), ("z", "a"), ("a", "z"), ("x", "y")]
    }
    assert len(keys) == 1


def test_expressions_ranges_and_conditions_of_sizes_count():
    keys = [
        dynamic_key(),
        dynamic_key(sizes=lambda a, b: (a, a)),
        dynamic_key(sizes=lambda a, b: (a, 9)),
        dynamic_key(sizes=lambda a, b: (a, b + 1)),
        dynamic_key(sizes=lambda a, b: (a, a + b)),
        dynamic_key(sizes=lambda a, b: (a, a * b)),
        dynamic_key(ranges=(SizeRange(2, 100), None)),
        dynamic_key(ask=lambda a, b: bool(a * 3 > b)),
        dynamic_key(ask=lambda a, b: bool(a * 4 > b)),
    ]
    assert len(set(keys)) == len(keys)
