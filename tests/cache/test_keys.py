import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precast.cache import content_key, processor_identity
from precast.cache.keys import identifying_lines

PARTS = st.lists(st.text(string.ascii_letters, max_size=3) | st.binary(max_size=3), max_size=4)


@given(PARTS, PARTS)
def test_keys_are_equal_just_when_the_parts_are(first, second):
    assert (content_key(first) == content_key(second)) == (first == second)


def test_a_key_is_the_same_in_every_process():
    assert content_key(["a", b"b"]) == "a6b6457ca777f26e8d80c99511e26f7fd0ce36824194399f4c7b1010867b81fa"


def test_text_and_bytes_are_told_apart():
    assert content_key(["a"]) != content_key([b"a"])


def test_the_processor_is_known_by_what_it_can_do_not_by_its_clock():
    one = "processor\t: 0\nmodel name\t: Fast\ncpu MHz\t\t: 1000\nflags\t\t: avx2 fma\n"
    assert identifying_lines(one + one.replace("1000", "2000").replace("processor\t: 0", "processor\t: 1")) == (
        "model name\t: Fast\nflags\t\t: avx2 fma"
    )


@pytest.mark.parametrize("fact", ["Fast", "fma"])
def test_another_processor_has_another_identity(fact):
    facts = "model name\t: Fast\nflags\t\t: avx2 fma\n"
    assert identifying_lines(facts) != identifying_lines(facts.replace(fact, "else"))


def test_this_machine_has_an_identity():
    assert re.search(r"\w", processor_identity())
