"""Programs as real projects write them run compiled as in eager: nothing is refused, nothing is wrong."""

import pytest

import precast
from tests.habits.programs import BLOCKS, Habits, check

_PROGRAMS, _AT_ONCE = 2000, 100


@pytest.mark.parametrize("seed", range(8))
def test_a_program_of_habits_is_eager(seed: int) -> None:
    check(Habits.of(seed), "nop")


def test_a_scale_by_channel_that_is_one_number_expanded() -> None:
    """Its load named the rows, too, which the loop over channels does not have."""
    check(Habits(("GradientInside", "WarmUp", "AverageReplaced"), "flat", "tensor", ("train", "reset")), "native")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, _PROGRAMS, _AT_ONCE))
def test_programs_of_habits_are_eager(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        check(Habits.of(seed), "nop")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, _PROGRAMS, 10 * _AT_ONCE))
def test_programs_of_habits_are_eager_in_native_code(first: int) -> None:
    for seed in range(first, first + _AT_ONCE):
        check(Habits.of(seed), "native", options={"random": "eager"})


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(BLOCKS))
def test_every_habit_is_eager_call_by_call(name: str) -> None:
    check(Habits((name,), "flat", "dict", ("train", "train", "eval", "no_grad", "other rows", "step", "reset")), "nop")


def test_what_cannot_be_captured_is_refused_only_if_asked_for() -> None:
    habits = Habits(("BranchOnItem",), "flat", "tensor", ("train",))
    check(habits, "nop")
    with pytest.raises(precast.PrecastError):
        check(habits, "nop", fullgraph=True)
