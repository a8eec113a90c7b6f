"""The pass runner: what it records and what it refuses."""

from functools import partial

import pytest
import torch

from precast.errors import VerifierError
from precast.graph.interpreter import interpret
from precast.graph.passes import pass_name, run_pass, run_passes
from precast.graph.program import Program
from precast.trace.capture import capture


def program() -> Program:
    return capture(lambda x: x.sin() + 1, (torch.ones(2),))


def nothing(program: Program) -> Program:
    return program


def sine_to_cosine(program: Program, *, target=torch.ops.aten.cos.default) -> Program:
    graph = program.copy_graph()
    for node in graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = target
    return program.replace(graph=graph)


def change_input(program: Program) -> Program:
    first = next(iter(program.graph.nodes))
    with program.graph.inserting_after(first):
        program.graph.call_function(torch.ops.aten.sin.default, (first,))
    return program


def rename_input(program: Program) -> Program:
    for node in program.graph.nodes:
        if node.target is torch.ops.aten.sin.default:
            node.target = torch.ops.aten.cos.default
    return program


def forget_values(program: Program) -> Program:
    graph = program.copy_graph()
    for node in graph.nodes:
        node.meta.pop("val", None)
    return program.replace(graph=graph)


def test_history_tells_what_each_pass_did():
    history = run_passes(program(), [nothing, sine_to_cosine]).history
    assert [(record.name, record.changed) for record in history] == [("nothing", False), ("sine_to_cosine", True)]
    assert all(record.seconds >= 0 and record.nodes_before == record.nodes_after == 4 for record in history)


def test_history_grows_from_run_to_run():
    once = run_pass(program(), nothing)
    assert [record.name for record in run_pass(once, sine_to_cosine).history] == ["nothing", "sine_to_cosine"]


def test_a_pass_with_options_goes_by_its_functions_name():
    assert pass_name(partial(sine_to_cosine, target=torch.ops.aten.tan.default)) == "sine_to_cosine"


def test_the_result_computes_what_the_pass_made_of_it():
    result = run_passes(program(), [sine_to_cosine])
    torch.testing.assert_close(interpret(result, torch.ones(2)), torch.ones(2).cos() + 1)


def test_a_pass_leaves_its_input_untouched():
    original = program()
    before = str(original)
    run_passes(original, [sine_to_cosine])
    assert str(original) == before


@pytest.mark.parametrize("culprit", [change_input, rename_input])
def test_a_pass_that_edits_its_input_is_found(culprit):
    with pytest.raises(AssertionError, match=f"pass {culprit.__name__} changed its input"):
        run_pass(program(), culprit)


def test_an_unsound_result_names_the_pass():
    with pytest.raises(VerifierError, match="not sound after pass forget_values"):
        run_pass(program(), forget_values)


def test_checking_can_be_left_out():
    assert run_pass(program(), forget_values, check=False).history[0].changed
