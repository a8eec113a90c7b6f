"""The measured choice between ways of computing a product: what is measured, what is kept, and when it is not."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from precast.cache import CacheWarning, Store
from precast.native.describe import Entry
from precast.native.loops.program import LibraryCall
from precast.native.targets.cpu import autotuning as native_choice
from precast.native.targets.cpu.autotuning import Measure, Problem, choose_ways, fastest, problem_of, timer
from precast.native.targets.cpu.target import CpuTarget
from precast.report.step_costs import kind_of
from tests.native.lowering.pipeline import lowered, make_entry


def linear_entry(*, rows: int = 64, dynamic: bool = False, weights: dict[str, str] | None = None) -> Entry:
    inputs = torch.ones(rows, 256), torch.ones(300, 256)
    return make_entry(lowered(lambda x, w: F.linear(x, w), *inputs, dynamic=dynamic), weights)


def ways_of(entry: Entry) -> list[int | None]:
    calls = [step for step in entry.program.steps if isinstance(step, LibraryCall)]
    return [call.numbers[0].constant if call.numbers else None for call in calls]


def taking(*times: float) -> Callable[[], Measure]:
    return lambda: lambda problem: times


def nobody_measures() -> Measure:
    raise AssertionError("what is known was measured again")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "cache", limit=2**20)


def test_the_faster_way_is_a_number_of_the_call(store: Store) -> None:
    (entry,) = choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    assert ways_of(entry) == [2]


def test_the_chosen_way_is_told_in_profiles(store: Store) -> None:
    (entry,) = choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    assert [kind_of(step, CpuTarget()) for step in entry.program.steps] == ["library, own loops"]
    assert [kind_of(step, CpuTarget()) for step in linear_entry().program.steps] == ["library"]


def test_another_way_must_be_clearly_faster_than_the_rule_of_thumb() -> None:
    assert [fastest([1.0, 0.98, 1.0]), fastest([1.0, 0.96, 0.95]), fastest([1.0, 0.96, 1.1])] == [0, 2, 1]


def test_a_rule_of_thumb_that_is_right_needs_no_number(store: Store) -> None:
    (entry,) = choose_ways([linear_entry()], store=store, measure=taking(1.0, 1.1, 1.0))
    assert ways_of(entry) == [None]


def test_what_was_measured_is_not_measured_again(store: Store) -> None:
    choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    (entry,) = choose_ways([linear_entry()], store=Store(store.directory, limit=2**20), measure=nobody_measures)
    assert ways_of(entry) == [2]


def test_other_sizes_and_threads_are_other_problems(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    (entry,) = choose_ways([linear_entry(rows=65)], store=store, measure=taking(2.0, 1.0, 2.0))
    assert ways_of(entry) == [1]
    monkeypatch.setattr(torch, "get_num_threads", lambda: 7)
    (entry,) = choose_ways([linear_entry()], store=store, measure=taking(2.0, 1.0, 2.0))
    assert ways_of(entry) == [1]


def test_a_damaged_table_is_measured_again(store: Store) -> None:
    choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    (kept,) = (path for path in store.directory.rglob("*") if native_choice.CHOICES in str(path) and path.is_file())
    kept.write_bytes(kept.read_bytes()[:-1])
    with pytest.warns(CacheWarning, match="damaged"):
        (entry,) = choose_ways([linear_entry()], store=store, measure=taking(2.0, 1.0, 2.0))
    assert ways_of(entry) == [1]


def test_without_a_folder_to_write_to_the_choice_is_still_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "cache", limit=2**20)
    with pytest.warns(CacheWarning, match="going on without"):
        (entry,) = choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    assert ways_of(entry) == [2]


def test_who_has_lost_patience_leaves_the_rest_to_the_rule_of_thumb(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native_choice, "PATIENCE", 0.0)
    (entry,) = choose_ways([linear_entry()], store=store, measure=taking(2.0, 2.0, 1.0))
    assert ways_of(entry) == [None]


@pytest.mark.parametrize(
    "entry",
    [linear_entry(rows=8), linear_entry(dynamic=True), linear_entry(weights={"arg1_1": "w"})],
    ids=["small", "dynamic", "constant"],
)
def test_there_is_no_choice(entry: Entry) -> None:
    assert [problem_of(step, entry) for step in entry.program.steps] == [None]


def test_every_way_is_timed(tmp_path: Path) -> None:
    times = timer(store=Store(tmp_path, limit=2**30))(Problem(rows=300, columns=5000, depth=1000, threads=1))
    assert len(times) == 3
    assert all(0 < each < 60 for each in times)
