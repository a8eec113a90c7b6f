import pytest

from tests.golden_files import ACCEPT_VARIABLE, assert_file_holds


@pytest.fixture(autouse=True)
def _not_accepting(monkeypatch):
    monkeypatch.delenv(ACCEPT_VARIABLE, raising=False)


def test_equal_text_passes(assert_golden):
    assert_golden("two_lines", "first\nsecond")


def test_another_text_fails_with_a_diff_and_the_way_to_accept(assert_golden):
    with pytest.raises(AssertionError) as failure:
        assert_golden("two_lines", "first\n2nd")
    message = str(failure.value)
    assert "\n first\n-second\n+2nd\n" in message
    assert f"{ACCEPT_VARIABLE}=1" in message


def test_a_missing_file_fails(tmp_path):
    with pytest.raises(AssertionError, match=r"there is no new\.txt yet"):
        assert_file_holds(tmp_path / "new.txt", "text")
    assert not (tmp_path / "new.txt").exists()


def test_accepting_writes_the_file(tmp_path, monkeypatch):
    monkeypatch.setenv(ACCEPT_VARIABLE, "1")
    path = tmp_path / "golden" / "new.txt"
    assert_file_holds(path, "text")
    assert path.read_text() == "text\n"
