import pytest

from benchmarks.peers import publish, results
from tests.benchmarks.test_tables import run


def test_pages_keep_what_is_around_the_marks(tmp_path):
    (tmp_path / "docs").mkdir()
    for page in (tmp_path / "docs" / "benchmarks.md", tmp_path / "README.md"):
        page.write_text(f"before\n{publish.BEGIN}\nold\n{publish.END}\nafter\n")
    publish.publish(run(), tmp_path)
    page = (tmp_path / "docs" / "benchmarks.md").read_text()
    assert page.startswith("before\n")
    assert page.endswith("after\n")
    assert "old" not in page
    assert "One thread, 2026-01-02" in page
    assert "OpenVINO 220 ms" in (tmp_path / "README.md").read_text()


def test_a_page_without_marks_is_not_written(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("no marks")
    with pytest.raises(AssertionError, match="no marks"):
        publish.replace_between_marks(page, "text")


def test_a_run_is_the_same_after_a_trip_through_json(tmp_path):
    results.save(run(), tmp_path / "run.json")
    assert results.load(tmp_path / "run.json") == run()
