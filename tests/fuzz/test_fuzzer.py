"""The fuzzer finds what is wrong, says so, and makes it small."""

import multiprocessing
import subprocess
import sys
import warnings
from dataclasses import replace

import pytest
import torch

from tests.fuzz import programs as programs_module
from tests.fuzz.__main__ import BATCH, Limits, Tally, batches_from
from tests.fuzz.generate import random_program
from tests.fuzz.judge import Expected, Verdict, expected, judge
from tests.fuzz.observe import Observation, observe_inference
from tests.fuzz.programs import Leaf, Name, Program, Step
from tests.fuzz.scripts import script
from tests.fuzz.shrink import shrink
from tests.fuzz.trials import Case, Report, Trial, run_cases
from tests.fuzz.undefined import is_defined
from tests.fuzz.workers import Build, DiedError, Failure, Worker, first_failure, try_all

X = Leaf("x0", "input", (2, 5))
HALVES = Program(
    (X, Leaf("w0", "parameter", (5,))),
    (Step(("v0",), "*", (Name("x0"), Name("self.w0"))), Step(("v1", "v2"), ".chunk", (Name("v0"), 2, -1))),
    ("v1", "v0"),
)


class Wrong(torch.nn.Module):
    """Does what a module does, and then something to its results."""

    def __init__(self, module, change):
        super().__init__()
        self.module, self.change = module, change

    def forward(self, *inputs):
        return self.change(list(self.module(*inputs)))


def verdict_of(change, mode="inference", program=HALVES):
    return Trial(Case(0, program, (mode,)), mode, lambda module, dynamic: Wrong(module, change)).run().kind


def raising(error):
    def change(results):
        raise error

    return change


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda results: results, "right"),
        (lambda results: [results[0] * 1.0001, results[1]], "wrong aliases"),
        (lambda results: [results[0], results[1].mul_(1.0001)], "wrong results"),
        (lambda results: [results[0], results[1].mul_(float("nan"))], "wrong results"),
        (lambda results: [results[0], results[1].double()], "wrong layouts"),
        (lambda results: [results[0], results[1].mT.contiguous().mT], "wrong layouts"),
        (raising(KeyError("here")), "raised KeyError"),
    ],
)
def test_what_differs_from_eager_is_named(change, kind):
    assert verdict_of(change) == kind


def test_wrong_gradients_are_found():
    def change(results):
        return [results[0] + 0.01 * (results[0].detach() - results[0])]

    assert verdict_of(change, "training", replace(HALVES, outputs=("v0",))).startswith("wrong")


def test_what_eager_refuses_must_be_refused():
    refused = Program((X,), (Step(("v0",), "@", (Name("x0"), Name("x0"))),), ("v0",))
    trial = Trial(Case(0, refused, ("inference",)), "inference", lambda module, dynamic: lambda x: (x,))
    assert trial.run().kind == "not refused"


def test_what_autograd_finds_wrong_with_torchs_own_gradients_need_not_be_refused():
    pixels = torch.zeros(1, 0, 2, 0, requires_grad=True)
    with pytest.raises(RuntimeError) as raised:
        torch.pixel_unshuffle(pixels, 2).sum().backward()
    eager = Expected(Observation(raised.value), None, (), 0.0)
    assert judge(Observation(), eager).kind == "unjudged"


def test_roundings_that_a_program_amplifies_are_no_failures():
    steps = (
        Step(("v0",), "-", (Name("x0"), Name("x0"))),
        Step(("v1",), "F.layer_norm", (Name("v0"), (5,))),
        Step(("v2",), "*", (Name("v1"), 1e6)),
        Step(("v3",), "torch.sin", (Name("v2"),)),
    )
    program = Program((X,), steps, ("v3",))
    assert verdict_of(lambda results: [results[0] + 0.3], program=program) == "unjudged"


def test_programs_of_a_seed_are_always_the_same():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        programs = [random_program(seed) for seed in range(20)]
    assert [random_program(seed) for seed in range(20)] == programs
    assert len({program.text() for program in programs}) == 20
    assert eval(repr(programs), vars(programs_module)) == programs


def test_a_failure_shrinks_to_the_steps_that_make_it():
    steps = (
        Step(("v0",), "F.relu", (Name("x0"),)),
        Step(("v1",), "F.conv1d", (Name("v0"), Name("self.w0"), None), (("padding", 3), ("groups", 6))),
        Step(("v2",), "[]", (Name("v1"), ..., slice(None, 16))),
        Step(("v3",), "F.silu", (Name("v2"),)),
        Step(("v4",), "+", (Name("v3"), Name("x0"))),
        Step(("v5",), "torch.cat", ([Name("v4"), Name("v4")], 1)),
    )
    leaves = (Leaf("x0", "input", (2, 6, 16)), Leaf("w0", "parameter", (6, 1, 4)))
    whole = Program(leaves, steps, ("v5", "v2"))

    def fails(program):
        """As a compiler would that cannot compute with cropped convolutions."""
        functions = [step.function for step in program.steps]
        return "F.conv1d" in functions and "[]" in functions and "F.silu" in functions

    small = shrink(whole, fails)
    assert [step.function for step in small.steps] == ["F.conv1d", "[]", "F.silu"]
    assert "padding" not in small.text()
    assert max(size for leaf in small.leaves for size in leaf.shape) == 1
    compile(script(Failure(0, small, "training", "loops", Verdict("crash"))), "script", "exec")


class DyingWorker:
    """Dies at the end of what it is given if these programs are among it."""

    def __init__(self, *deadly):
        self.deadly = set(deadly)

    def run(self, cases):
        yield from (Report(number, "inference", "loops", Verdict("right")) for number in range(len(cases) - 1))
        last = Report(len(cases) - 1, "inference", "loops")
        yield last
        if self.deadly <= {case.seed for case in cases}:
            raise DiedError("crash", last, "")
        yield replace(last, verdict=Verdict("right"))


def test_a_crash_is_traced_to_the_program_that_makes_it():
    cases = [Case(seed, HALVES, ("inference",)) for seed in range(8)]
    found = {case.seed: report.verdict.kind for case, report in try_all(DyingWorker(3), cases)}
    assert found == {seed: "crash" if seed == 3 else "right" for seed in range(8)}


def test_a_crash_that_takes_two_programs_is_not_lost():
    cases = [Case(seed, HALVES, ("inference",)) for seed in range(4)]
    reports = [report for _, report in try_all(DyingWorker(1, 2), cases) if report.verdict.kind == "crash"]
    assert [report.verdict.detail for report in reports] == ["with seeds 0 to 3 in one process: "]


class FailingWorker:
    """Reports a failure first, and goes on."""

    is_done = False

    def run(self, cases):
        yield Report(0, "inference", "loops", Verdict("wrong results"))
        yield Report(0, "training", "loops", Verdict("wrong gradients"))
        self.is_done = True


def test_a_failing_program_is_tried_to_the_end():
    worker = FailingWorker()
    found = first_failure(worker, Case(0, HALVES, ("inference", "training")))
    assert (found.mode, found.verdict.kind) == ("inference", "wrong results")
    assert worker.is_done


def test_a_crash_is_survived(tmp_path):
    dying = Program((X,), (Step((), "__import__('os')._exit", (3,)), Step(("v0",), "+", (Name("x0"), 1))), ("v0",))
    worker = Worker(tmp_path, Build(stages=("loops",)))
    try:
        assert [each.verdict.kind for _, each in try_all(worker, [Case(0, dying, ("inference",))])] == ["crash"]
    finally:
        worker.stop()


def test_what_eager_itself_leaves_undefined_is_not_tried(tmp_path):
    padded = Program(
        (Leaf("x0", "input", (1, 1, 1, 1)),),
        (Step(("v0",), "F.max_pool2d", (Name("x0"), 2, 2, 1, 2)),),
        ("v0",),
    )
    assert not is_defined(padded, 0, "data")
    assert is_defined(replace(padded, leaves=(Leaf("x0", "input", (1, 1, 2, 2)),)), 0, "data")
    assert not list(run_cases([Case(0, padded, ("training",))], tmp_path, stages=("loops",)))


def test_gradients_of_batch_norms_that_eager_mixes_up_are_not_asked_for():
    operands = (Name("x0"), Name("self.b0"), Name("self.b1"), None, None, False)
    statistics = (Leaf("b0", "buffer", (2,)), Leaf("b1", "buffer", (2,)))
    norm = Step(("v0",), "F.batch_norm", operands)
    for height, defined in ((1, False), (2, True)):
        image = Leaf("x0", "input", (1, 2, height, 3), layout="channels_last")
        assert is_defined(Program((image, *statistics), (norm,), ("v0",)), 0, "data") is defined


@pytest.mark.parametrize(("given", "expected"), [("data", False), ("leaves", True), ("results", True)])
def test_gradients_of_group_norms_that_eager_writes_nowhere_are_not_asked_for(given, expected):
    image = Leaf("x0", "input", (1, 2, 2, 3), layout="channels_last")
    norm = Step(("v0",), "F.group_norm", (Name("x0"), 1, Name("self.w0"), Name("self.w1")))
    weights = (Leaf("w0", "parameter", (2,)), Leaf("w1", "parameter", (2,)))
    assert is_defined(Program((image, *weights), (norm,), ("v0",)), 0, given) is expected


def test_batches_end_where_enough_programs_were_tried():
    assert list(batches_from(5, Limits(seconds=60, programs=BATCH + 1))) == [
        range(5, 5 + BATCH),
        range(5 + BATCH, 6 + BATCH),
    ]
    assert not list(batches_from(5, Limits(seconds=0, programs=10)))


def test_a_run_goes_on_where_it_ended(tmp_path):
    tally, tried = Tally(tmp_path), range(3, 3 + BATCH)
    wrong = Report(0, "inference", "code", Verdict("wrong results", "off"))
    tally.add_batch(tried, iter([(Case(3, HALVES, ("inference",)), wrong)]))
    again = Tally(tmp_path, resume=True)
    assert again.counts == tally.counts
    assert [each.verdict for each in again.failed.values()] == [wrong.verdict]
    limits = Limits(seconds=60, programs=BATCH + 1)
    assert list(batches_from(3, limits, again.done)) == [range(3 + BATCH, 4 + BATCH)]
    assert not Tally(tmp_path).done


@pytest.mark.parametrize(("code", "told"), [("input()", "asleep"), ("while True: pass", "processor time")])
def test_what_waits_and_what_counts_forever_are_hangs(tmp_path, monkeypatch, code, told):
    monkeypatch.setattr("tests.fuzz.workers.ASLEEP", 2)
    monkeypatch.setattr("tests.fuzz.workers.GLANCE", 0.2)
    worker = Worker(tmp_path, Build())
    worker.connection, _kept = multiprocessing.Pipe()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, start_new_session=True) as process:
        worker.process = process
        assert told in worker.why_silent(0.5)
        process.kill()


def test_sums_that_cancel_are_off_by_roundings_of_what_they_sum():
    cancelling = Program((Leaf("x0", "input", (2, 64)),), (Step(("v0",), ".sum", (Name("x0"),)),), ("v0",))

    class Cancelling(Program):
        """Numbers of which every second one takes away the one before, but for a little."""

        def made(self, seed, **how):
            module, (given,) = cancelling.made(seed, **how)
            given.data[1] = -given.data[0] * (1 + 2**-10)
            return module, [given]

    program = Cancelling(cancelling.leaves, cancelling.steps, cancelling.outputs)
    for allowed, change in (("right", 2e-7), ("wrong results", 1e-3)):
        call = Wrong(program.made(0)[0], lambda results, by=change: [results[0] + by])
        wanted = expected(program, 0, observe_inference)
        assert judge(observe_inference(call, torch.nn.Module(), program.made(0)[1]), wanted).kind == allowed
