from multiprocessing import Pipe

import numpy
import torch

from benchmarks.peers.accuracy import relative_error, sampled
from benchmarks.peers.architectures import UNet
from benchmarks.peers.command import _is_over
from benchmarks.peers.contender_process import Conditions, Ready
from benchmarks.peers.contenders import CONTENDERS, contenders_for
from benchmarks.peers.making import WithLoss
from benchmarks.peers.torch_contenders import COMPILE
from benchmarks.peers.turns import Contestant, _ask, _result, measure, prepare_processes
from benchmarks.peers.workload import Workload


def test_every_contender_of_torch_has_a_compile_function():
    assert {name for name, contender in CONTENDERS.items() if not contender.reads_onnx} == {
        *COMPILE,
        "precast-step",
    }


def test_only_those_who_train_are_asked_to():
    assert contenders_for(Workload("bert", "training"), list(CONTENDERS)) == [
        "eager",
        "compile",
        "compile-step",
        "compile-precast",
        "precast",
        "precast-step",
    ]


def test_the_loss_of_images_takes_a_class_a_pixel():
    loss = WithLoss(UNet(width=8))(torch.randn(2, 4, 8, 8), torch.randint(0, 4, (128,)))
    assert loss.shape == ()


def test_errors_are_relative_and_other_shapes_are_infinitely_wrong():
    assert relative_error(numpy.array([1.0, 2.0]), numpy.array([1.0, 2.0])) == 0
    assert relative_error(numpy.ones(2), numpy.ones(3)) == float("inf")
    assert sampled(numpy.ones(100_000)).size < 5000


def test_no_workload_begins_that_would_end_much_too_late():
    assert not _is_over(0, 10, done=0)
    assert not _is_over(8, 10, done=4)
    assert _is_over(8, 10, done=1)


def test_contenders_take_turns_in_every_run_and_one_that_fails_says_why_once(tmp_path, monkeypatch):
    prepare_processes()
    said: list[str] = []
    monkeypatch.setitem(CONTENDERS, "nobody", CONTENDERS["eager"])
    found = measure(
        Workload("unet", "inference-1"),
        ["eager", "nobody"],
        tmp_path,
        runs=2,
        threads=1,
        clock="wall",
        seconds=0,
        say=said.append,
    )
    eager, nobody = found
    assert len(eager.slices) == 6
    assert len(eager.runs) == 2
    assert eager.first_result_seconds
    assert eager.warm_result_seconds
    assert eager.error < 1e-5
    assert eager.peak_bytes > 2**20
    assert nobody.failure == "KeyError: 'nobody'"
    assert next(step for step in said if "run 2" in step) == "run 2, starting eager"
    assert len([step for step in said if "run 2, starting" in step]) == 1


def test_a_contender_that_dies_in_its_turn_is_out(tmp_path):
    ours, theirs = Pipe()
    theirs.close()
    contestant = Contestant("eager", None, ours, Ready(1.0, 0.0), [0.5])
    (tmp_path / "eager.log").write_text("Traceback\nMemoryError\n")
    assert _ask(contestant, 0.1) is None
    conditions = Conditions(Workload("unet", "training"), tmp_path, 1, "wall", is_warm=False)
    assert _result(contestant, conditions).failure == "MemoryError"
