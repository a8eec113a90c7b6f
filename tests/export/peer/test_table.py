"""The guide's table counts the programs that are compared."""

from tests.export.peer.table import GUIDE, rows, table


def test_the_guide_counts_what_is_compared():
    assert table() in GUIDE.read_text(), "run python -m tests.export.peer.table --write"
    assert sum(count for _, count in rows()) >= 300
