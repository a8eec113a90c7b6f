import inspect

import pytest

import precast
import precast.runtime
from precast import errors
from precast.errors import ArtifactError, InputTypeError, OptionError, PrecastError
from precast.report.page import read_page
from precast.training.timeline import read_timeline

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind is not PrecastError]


def test_the_message_says_what_where_why_and_what_to_do():
    error = PrecastError("the stove is cold", at="kitchen.py:3", why="it is off", fix="turn it on")
    assert str(error) == "the stove is cold\n  at:  kitchen.py:3\n  why: it is off\n  fix: turn it on"
    assert (error.what, error.at, error.why, error.fix) == (
        "the stove is cold",
        "kitchen.py:3",
        "it is off",
        "turn it on",
    )


def test_the_place_may_be_unknown():
    assert str(PrecastError("cold", why="off", fix="on")) == "cold\n  why: off\n  fix: on"


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_kind_is_a_precast_error_and_a_standard_one(kind):
    assert issubclass(kind, PrecastError)
    assert issubclass(kind, TypeError | ValueError | RuntimeError | OSError | ImportError)


@pytest.mark.parametrize(("kind", "standard"), [(InputTypeError, TypeError), (OptionError, ValueError)])
def test_a_kind_is_caught_as_the_error_that_pytorch_users_expect(kind, standard):
    with pytest.raises(standard, match="cold"):
        raise kind("cold", why="off", fix="on")


@pytest.mark.parametrize("read", [precast.load, precast.runtime.load])
@pytest.mark.parametrize("content", [b"no archive", b"PK\x05\x06" + bytes(18)], ids=["no archive", "no manifest"])
def test_errors_about_the_content_of_a_file_name_the_file(read, content, tmp_path):
    path = tmp_path / "model.precast"
    path.write_bytes(content)
    with pytest.raises(ArtifactError) as failure:
        read(path)
    assert failure.value.at == str(path)
    assert f"\n  at:  {path}\n" in str(failure.value)


@pytest.mark.parametrize("read", [precast.load, precast.runtime.load, precast.aot_load, read_page, read_timeline])
def test_a_missing_file_is_told_as_such_by_all_that_read_files(read, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        read(tmp_path / "nothing")


def test_a_package_is_not_a_library(tmp_path):
    path = tmp_path / "model.precast"
    path.touch()
    with pytest.raises(ArtifactError, match=r"precast\.runtime\.load"):
        precast.aot_load(path)
