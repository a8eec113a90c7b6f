"""Runs programs of habits by their seeds, and shows the failing ones: ``python -m tests.habits.run 0 2000 nop``."""

import sys

from tests.habits.programs import Habits, check, shrink


def _failure(habits: Habits, backend: str) -> Exception | None:
    try:
        check(habits, backend)
    except Exception as error:  # noqa: BLE001 whatever fails is what is looked for
        return error
    return None


def main(first: int, last: int, backend: str) -> None:
    failed = 0
    for seed in range(first, last):
        habits = Habits.of(seed)
        error = _failure(habits, backend)
        if error is not None:
            failed += 1
            kind = type(error)
            small = shrink(habits, lambda each, kind=kind: isinstance(_failure(each, backend), kind))
            again = _failure(small, backend)
            print(f"{seed}: {small}\n    {kind.__name__}: {str(again)[:600]}", flush=True)
    print(f"{last - first} programs, {failed} failed")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
