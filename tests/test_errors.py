import inspect

import pytest

from precast import errors
from precast.errors import InputTypeError, OptionError, PrecastError

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
