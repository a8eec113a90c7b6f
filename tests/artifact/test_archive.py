"""Archives: aligned, the same bytes for the same content, and nothing in a bad one is believed."""

import contextlib
import io
import tempfile
import zipfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from precast.artifact.archive import ALIGNMENT, read_archive, write_archive
from precast.errors import ArtifactError

MEMBERS = {"manifest.json": b"{}", "native/x/model.so": b"\x7fELF" * 50, "weights.safetensors": bytes(range(256)) * 4}


@pytest.fixture
def archive(tmp_path):
    write_archive(tmp_path / "a.zip", MEMBERS)
    return tmp_path / "a.zip"


def read(data):
    return {name: bytes(content) for name, content in read_archive(memoryview(data)).items()}


def plain_zip(members, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as target:
        for name, content in members:
            target.writestr(name, content)
    return file.getvalue()


def test_members_come_back(archive):
    assert read(archive.read_bytes()) == MEMBERS


def test_any_zip_program_reads_it(archive):
    with zipfile.ZipFile(archive) as opened:
        assert opened.testzip() is None
        assert opened.read("manifest.json") == b"{}"


def test_members_begin_at_multiples_of_64(archive):
    data = archive.read_bytes()
    assert all(data.index(content) % ALIGNMENT == 0 for content in list(MEMBERS.values())[1:])


def test_equal_members_give_equal_bytes(archive, tmp_path):
    write_archive(tmp_path / "b.zip", MEMBERS)
    assert archive.read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_a_failed_write_leaves_the_old_file(archive):
    before = archive.read_bytes()
    with pytest.raises(AssertionError):
        write_archive(archive, {"../evil": b""})
    assert archive.read_bytes() == before
    assert [each.name for each in archive.parent.iterdir()] == ["a.zip"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a zip",
        plain_zip([("../evil", b"x")]),
        plain_zip([("/etc/passwd", b"x")]),
        plain_zip([("a\\b", b"x")]),
        plain_zip([("a/../b", b"x")]),
        plain_zip([("manifest.json", b"x" * 1000)], zipfile.ZIP_DEFLATED),
        plain_zip([("manifest.json", b"unaligned")]),
        plain_zip([(f"m{number}", b"") for number in range(1001)]),
    ],
    ids=["empty", "text", "parent", "absolute", "backslash", "dots", "compressed", "unaligned", "many"],
)
def test_bad_archives_are_refused(data):
    with pytest.raises(ArtifactError):
        read(data)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_members_of_one_name_are_refused():
    with pytest.raises(ArtifactError):
        read(plain_zip([("a", b"1"), ("a", b"2")]))


@cache
def whole_archive():
    with tempfile.TemporaryDirectory() as folder:
        write_archive(Path(folder) / "a.zip", MEMBERS)
        return (Path(folder) / "a.zip").read_bytes()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_flipped_bits_and_cut_ends_give_the_archive_or_the_error(data):
    content = bytearray(whole_archive())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    content = content[: data.draw(st.integers(0, len(content)))]
    # Any other error than ours would come through.
    with contextlib.suppress(ArtifactError):
        read(bytes(content))
