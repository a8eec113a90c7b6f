"""How many programs are compared with PyTorch's exporter, feature by feature: the table of the guide.

``python -m tests.export.peer.table`` prints it, ``--write`` puts it into the guide.
"""

import sys
from pathlib import Path

from tests.export.peer import (
    test_behaviours,
    test_call_programs,
    test_collectives,
    test_further_programs,
    test_operator_programs,
    test_program_objects,
    test_size_programs,
    test_torch_programs,
    test_unbacked_programs,
    test_unflatten_programs,
)

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "from-torch-export.md"
START, END = "<!-- compared programs -->\n", "<!-- end of compared programs -->"

FEATURES = {
    "calls: trees, keywords, names of inputs, checks": ("calls", test_call_programs.CASES),
    "dynamic sizes": ("sizes", test_size_programs.CASES),
    "sizes that depend on each other, suggested fixes": ("relations", {}),
    "numbers that are known only after running": ("values", test_unbacked_programs.PROGRAMS),
    "checks of such numbers": ("checks", {}),
    "control flow": ("control_flow", {}),
    "operators and layers": (None, test_operator_programs.CASES),
    "buffers, writes, state": ("state", {}),
    "constants, tied and wrapped weights": ("constants", {}),
    "the program object, metadata, files": (
        "objects",
        {**test_program_objects.QUESTIONS, **test_program_objects.REFUSALS},
    ),
    "decompositions": ("decompositions", {}),
    "`unflatten`": ("unflattened", test_unflatten_programs.MODULES),
    "files and objects of PyTorch's exporter": (None, test_torch_programs.CASES),
    "sizes, numbers, control flow, writes and layers, found by large comparisons": (None, test_further_programs.CASES),
    "collectives": (None, test_collectives.PROGRAMS),
}


def rows() -> list[tuple[str, int]]:
    topics = {topic.__name__.rpartition(".")[2]: topic for topic in test_behaviours.TOPICS}
    return [
        (feature, len(cases) + (len(test_behaviours.behaviours_of(topics[name])) if name else 0))
        for feature, (name, cases) in FEATURES.items()
    ]


def table() -> str:
    """The table as Markdown."""
    counted = rows()
    total = sum(count for _, count in counted)
    lines = [f"| {feature} | {count} |" for feature, count in counted]
    return "\n".join(["| feature | programs |", "| --- | --- |", *lines, f"| all | {total} |", ""])


def main() -> None:
    print(table())
    if "--write" in sys.argv:
        before, _, rest = GUIDE.read_text().partition(START)
        GUIDE.write_text(before + START + table() + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
