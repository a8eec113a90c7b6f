"""What the analysis says of inputs and outputs, by one run on functional fake tensors."""

import pytest
import torch

from precast.graph.boundary import BoundaryFacts, Relation
from precast.trace.fake_inputs import FakeInputs
from precast.trace.functionalize import analyze
from precast.trace.session import tracing_session


def facts_of(function, *tensors: torch.Tensor) -> BoundaryFacts:
    """The facts on a flat function that returns one value or a list."""
    fakes = FakeInputs()

    def flat(*inputs):
        result = function(*inputs)
        return list(result) if isinstance(result, (list, tuple)) else [result]

    with tracing_session():
        return analyze(flat, [fakes.fake(tensor) for tensor in tensors], fakes.mode)


def relations(facts: BoundaryFacts):
    return [(output.relation, output.base) for output in facts.outputs]


x, y = torch.ones(2, 3), torch.ones(4)
needs_grad = torch.ones(2, 3, requires_grad=True)


def test_a_pure_function_is_plain():
    facts = facts_of(lambda a: a + 1, x)
    assert facts.is_plain
    assert not facts.inputs[0].is_updated


@pytest.mark.parametrize(
    "write",
    [lambda a: a.add_(1), lambda a: a[0].zero_(), lambda a: a.t().mul_(2), lambda a: torch.sin(a, out=a)],
    ids=["itself", "a row", "a transposed view", "an out argument"],
)
def test_data_mutation(write):
    def function(a, b):
        write(a)
        return b + 1

    facts = facts_of(function, x, y)
    assert facts.updated == (0,)
    assert facts.inputs[0].mutates_data
    assert not facts.inputs[0].mutates_metadata


def test_metadata_mutation():
    facts = facts_of(lambda a: a.t_().sum(), x).inputs[0]
    assert (facts.mutates_data, facts.mutates_metadata, facts.replaces_storage) == (False, True, False)


def test_metadata_that_comes_back_is_no_mutation():
    assert not facts_of(lambda a: a.t_().t_().sum(), x).inputs[0].is_updated


def test_exchanged_memory():
    facts = facts_of(lambda a, b: a.set_(b * 1).sum(), x, y).inputs[0]
    assert facts.mutates_metadata
    assert facts.replaces_storage


def test_mutation_under_no_grad():
    def function(a):
        with torch.no_grad():
            a.add_(1)
        return a * 2

    facts = facts_of(function, needs_grad).inputs[0]
    assert facts.mutates_data
    assert facts.mutation_under_no_grad
    assert not facts.update_needs_gradient


@pytest.mark.parametrize("hide", [lambda a: a.detach(), lambda a: a.data], ids=["detach", "data"])
def test_mutation_hidden_from_autograd(hide):
    def function(a):
        hide(a).add_(1)
        return a * 2

    facts = facts_of(function, needs_grad).inputs[0]
    assert facts.mutates_data
    assert facts.mutation_hidden_from_autograd
    assert not facts.update_needs_gradient


def test_one_visible_mutation_makes_the_update_visible():
    def function(a):
        inner = a * 1
        with torch.no_grad():
            inner.add_(1)
        return inner.add_(1)

    def on_input(a, b):
        with torch.no_grad():
            b.add_(1)
        b.add_(a.sum())
        return b * 2

    assert not facts_of(function, needs_grad).inputs[0].is_updated
    facts = facts_of(on_input, needs_grad, y).inputs[1]
    assert facts.mutates_data
    assert not facts.mutation_under_no_grad


def test_an_input_that_comes_to_require_grad_by_a_write():
    facts = facts_of(lambda a, b: b.add_(a.sum()), needs_grad, y)
    assert facts.inputs[1].update_needs_gradient


def test_the_input_itself():
    assert relations(facts_of(lambda a: (a, a + 1, a), x)) == [
        (Relation.IS_INPUT, 0),
        (Relation.FRESH, None),
        (Relation.IS_INPUT, 0),
    ]


def test_views_of_inputs():
    facts = facts_of(lambda a, b: (b[1:], a.t(), a.detach()), x, y)
    assert relations(facts) == [(Relation.VIEW_OF_INPUT, 1), (Relation.VIEW_OF_INPUT, 0), (Relation.VIEW_OF_INPUT, 0)]


def test_the_same_output_twice():
    def function(a):
        made = a + 1
        return made, made

    assert relations(facts_of(function, x)) == [(Relation.FRESH, None), (Relation.IS_OUTPUT, 0)]


def test_a_view_of_another_output():
    def function(a):
        made = a + 1
        return made.t(), made

    assert relations(facts_of(function, x)) == [(Relation.VIEW_OF_OUTPUT, 1), (Relation.FRESH, None)]


def test_views_of_one_intermediate():
    def function(a):
        made = a + 1
        return made[0], made[1]

    assert relations(facts_of(function, x)) == [(Relation.VIEW_OF_BASE, 0), (Relation.VIEW_OF_BASE, 0)]


def test_views_of_two_intermediates():
    def function(a):
        first, second = a + 1, a + 2
        return first[0], second[0], first[1], second[1]

    assert [base for _, base in relations(facts_of(function, x))] == [0, 1, 0, 1]


def test_the_only_view_of_an_intermediate_is_fresh():
    assert relations(facts_of(lambda a: (a + 1).t(), x)) == [(Relation.FRESH, None)]


def test_views_of_views_are_views_of_the_root():
    def function(a):
        made = a + 1
        middle = made.view(-1)
        return middle[1:], middle[:2], made

    assert relations(facts_of(function, x))[:2] == [(Relation.VIEW_OF_OUTPUT, 2)] * 2


def test_an_input_that_is_written_and_returned():
    facts = facts_of(lambda a: (a.add_(1), a.view(-1)), x)
    assert facts.updated == (0,)
    assert relations(facts) == [(Relation.IS_INPUT, 0), (Relation.VIEW_OF_INPUT, 0)]


def test_inputs_that_share_memory_do_so_in_the_analysis():
    base = torch.ones(6)
    facts = facts_of(lambda a, b: a.sum() + b.sum(), base[:3], base[3:])
    assert not facts.updated


def test_which_outputs_need_tangents():
    def function(a):
        made = a * 2
        return made, made.detach(), (made > 0), made[0]

    facts = facts_of(function, needs_grad)
    assert [output.needs_tangent for output in facts.outputs] == [True, False, False, False]


def test_outputs_that_are_no_tensors():
    facts = facts_of(lambda a: (a + 1, 3, None), x)
    assert [output.is_tensor for output in facts.outputs] == [True, False, False]


def test_randomness():
    assert facts_of(lambda a: torch.nn.functional.dropout(a, 0.5), x).is_random
    assert not facts_of(lambda a: torch.nn.functional.dropout(a, 0.0), x).is_random
    assert not facts_of(lambda a: a * 2, x).is_random


def test_effects():
    assert facts_of(torch.linalg.inv, torch.eye(2)).effect_tokens == 1
    assert facts_of(torch.sin, x).effect_tokens == 0


def test_the_inputs_are_left_as_they_were():
    fakes = FakeInputs()
    fake = fakes.fake(x)
    with tracing_session():
        analyze(lambda a: [a.add_(1).t_()], [fake], fakes.mode)
    assert fake.shape == (2, 3)


def test_symbols_of_data_dependent_sizes_are_nobodys():
    assert facts_of(lambda a: a[a > 0], x).is_plain
