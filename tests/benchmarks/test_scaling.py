import pytest

from benchmarks.peers.results import Measurement, Outcome
from benchmarks.peers.workload import Workload
from benchmarks.scaling import steps_over_threads, table_of


def test_a_table_has_a_column_for_each_number_of_threads():
    def outcome(eager: float, ours: float) -> Outcome:
        return Outcome("unet", "inference-1", [Measurement("eager", [eager]), Measurement("precast", [ours])])

    table = table_of({1: outcome(0.4, 0.2), 16: outcome(0.04, 0.05)}, ["eager", "precast"])
    assert table.splitlines()[0] == "|  | 1 threads | 16 threads |"
    assert table.splitlines()[-1] == "| Precast to the fastest peer | 2.00x | 0.80x |"


@pytest.mark.slow
def test_steps_are_timed_at_each_number_of_threads():
    header, *_, call, flops, memory = steps_over_threads(Workload("unet", "inference-1"), [1, 2]).splitlines()
    assert header == "|  | steps | 1 threads | 2 threads |"
    assert all(float(cell) > 0 for line in (call, flops, memory) for cell in line.split("|")[-3:-1])
