"""Random programs of views and writes: values, updated inputs and shared memory are eager's."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from precast.graph.boundary import BoundaryFacts, Relation
from precast.graph.interpreter import interpret
from precast.trace.capture import capture
from precast.trace.functionalize import functionalize
from tests.trace.functionalize.view_programs import ViewProgram, view_programs


def reported_owners(facts: BoundaryFacts) -> list[tuple[str, int]]:
    """For each output, whose memory it is in: an input's, a base's, or that of an output."""
    owners: dict[int, tuple[str, int]] = {}

    def owner(number: int) -> tuple[str, int]:
        if number not in owners:
            output = facts.outputs[number]
            if output.relation in (Relation.IS_INPUT, Relation.VIEW_OF_INPUT):
                owners[number] = ("input", output.base)
            elif output.relation is Relation.VIEW_OF_BASE:
                owners[number] = ("base", output.base)
            elif output.relation is Relation.FRESH:
                owners[number] = ("output", number)
            else:
                owners[number] = owner(output.base)
        return owners[number]

    return [owner(number) for number in range(len(facts.outputs))]


def assert_sharing_like_eager(facts: BoundaryFacts, inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> None:
    owners = reported_owners(facts)
    for number, output in enumerate(outputs):
        for position, value in enumerate(inputs):
            assert (owners[number] == ("input", position)) == _share(output, value)
            is_input = facts.outputs[number].relation is Relation.IS_INPUT and facts.outputs[number].base == position
            assert is_input == (output is value)
        for other in range(number):
            assert (owners[number] == owners[other]) == _share(output, outputs[other])


def _share(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.untyped_storage()._cdata == right.untyped_storage()._cdata


def check(program: ViewProgram) -> None:
    functional = functionalize(capture(program, tuple(program.inputs())))
    eager_inputs, our_inputs = program.inputs(), program.inputs()
    expected = program(*eager_inputs)
    result = interpret(functional, *our_inputs)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)
    torch.testing.assert_close(our_inputs, eager_inputs, rtol=0, atol=0)
    assert [value.stride() for value in our_inputs] == [value.stride() for value in eager_inputs]
    assert_sharing_like_eager(functional.boundary, eager_inputs, expected)


@settings(max_examples=25, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(view_programs())
def test_random_programs(program: ViewProgram):
    check(program)


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(view_programs())
def test_many_random_programs(program: ViewProgram):
    check(program)
