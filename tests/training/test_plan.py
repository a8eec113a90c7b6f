"""Timelines of steps, and what they say of steps over many processes."""

import json
from pathlib import Path

import pytest
import torch
from torch import distributed
from typer.testing import CliRunner

import precast
from precast import cli
from precast.cli.plan import parse_bytes, parse_seconds
from precast.errors import ArtifactError, InputValueError
from precast.training.plan import Network, plan, powers_of_two
from precast.training.timeline import Exchange, Timeline, read_timeline
from tests.training.process_worker import Network as Model
from tests.training.process_worker import batches, loss_of, make_optimizer


def reduced(megabytes, started, waited_from, waited_until):
    return Exchange("all_reduce", int(megabytes * 1e6), started, waited_until, waited_from, waited_until)


MEASURED = Timeline(
    seconds=10.0, processes=1, exchanges=(reduced(1, 4.0, 8.0, 8.0), reduced(1, 6.0, 8.0, 8.0)),
)  # fmt: skip
"""Two buckets that are exchanged from seconds 4 and 6 on, and waited for from second 8 on."""


def planned(bandwidth, latency=0.0, ranks=2, timeline=MEASURED):
    (step,) = plan(timeline, Network(bandwidth, latency), [ranks])
    return step


def test_exchanges_that_end_before_they_are_waited_for_cost_nothing():
    # Over two processes, each sends half of the bytes twice: a second for each bucket.
    step = planned(1e6)
    assert (step.seconds, step.waiting_seconds, step.efficiency, step.speedup) == (10.0, 0.0, 1.0, 2.0)


def test_what_is_left_of_exchanges_is_waited_for():
    # From second 4 to 8, and, once the network is free, to 12: both are waited for from second 8 on.
    assert planned(0.25e6).waiting_seconds == pytest.approx(4.0)
    assert planned(0.25e6).seconds == pytest.approx(14.0)
    assert planned(0.25e6).efficiency == pytest.approx(10 / 14)


def test_a_measured_step_is_planned_without_what_it_waited_itself():
    slow = Timeline(
        seconds=13.0, processes=2, exchanges=(reduced(1, 4.0, 8.0, 11.0), reduced(1, 6.0, 11.0, 11.0)),
    )  # fmt: skip
    assert planned(1e9, timeline=slow).seconds == pytest.approx(10.0, abs=0.01)


def test_many_processes_take_a_tree_where_a_ring_has_too_many_rounds():
    exchange = reduced(1, 0, 0, 0)
    network = Network(1e9, 1e-3)
    assert network.seconds(exchange, 1) == 0
    assert network.seconds(exchange, 2) == pytest.approx(1e-3 + 2e-3)
    assert network.seconds(exchange, 1024) == pytest.approx(2e-3 + 20e-3)
    gathered = Exchange("all_gather_into_tensor", 10**6, 0, 0, 0, 0)
    assert network.seconds(gathered, 4) == pytest.approx(0.75e-3 + 2e-3)
    assert powers_of_two(6) == [1, 2, 4, 6]


def test_units_of_the_command_line():
    assert parse_bytes("50GB/s") == 50e9
    assert parse_bytes("400Gb/s") == 50e9
    assert parse_bytes("25MiB") == 25 * 2**20
    assert parse_seconds("5us") == pytest.approx(5e-6)
    for text in ("fast", "-1GB/s", "1.2.3GB", "0GB"):
        with pytest.raises(InputValueError, match="not a byte count"):
            parse_bytes(text)


@pytest.fixture
def measured(tmp_path):
    """The timeline of a step of a process group of this process alone."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    model, batch = Model(), batches(1)[0]
    group = distributed.group.WORLD
    step = precast.train_step(
        model, loss_of, make_optimizer(model), batch, process_group=group, bucket_bytes=256, backend="nop"
    )
    yield step.timeline(batch)
    distributed.destroy_process_group()


def test_a_timeline_tells_of_every_bucket_and_is_read_again(measured, tmp_path):
    parameters = sum(each.nbytes for each in Model().parameters())
    # The loss is exchanged, too.
    assert sum(each.bytes for each in measured.exchanges) == parameters + 4
    assert len(measured.exchanges) > 3
    for each in measured.exchanges:
        assert 0 < each.started <= each.finished <= measured.seconds
        assert each.started < each.waited_from <= each.waited_until < measured.seconds
    assert str(measured).count("all_reduce") == len(measured.exchanges)
    measured.save(tmp_path / "step.json")
    assert read_timeline(tmp_path / "step.json") == measured
    assert json.loads((tmp_path / "step.json").read_text())["traceEvents"]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"precast": 3}', '{"precast": {"seconds": "x"}}'])
def test_files_that_are_no_timeline_are_refused(content, tmp_path):
    (tmp_path / "step.json").write_text(content)
    with pytest.raises(ArtifactError):
        read_timeline(tmp_path / "step.json")


def make():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    return model, loss_of, torch.optim.SGD(model.parameters(), lr=0.1), batches(1)[0]


def run(*arguments):
    return CliRunner().invoke(cli.app, ["plan", *map(str, arguments)])


def test_the_command_plans_a_file_or_a_step_that_it_measures(tmp_path):
    Timeline(1.0, 1, (reduced(100, 0.5, 0.75, 0.75),)).save(tmp_path / "step.json")
    result = run(tmp_path / "step.json", "--ranks", 1024, "--bandwidth", "50GB/s", "--plot", tmp_path / "plan.svg")
    assert result.exit_code == 0, result.output
    assert "1024" in result.stdout
    assert "1 exchanges of 100.0 MB" in result.stdout
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    result = run(f"{Path(__file__)}:make", "--ranks", 4, "--bandwidth", "1Gb/s", "--json")
    assert result.exit_code == 0, result.output
    steps = json.loads(result.stdout)["steps"]
    assert [each["processes"] for each in steps] == [1, 2, 4]
    assert steps[0]["waiting_seconds"] == 0
