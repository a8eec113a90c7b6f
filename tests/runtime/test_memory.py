"""Memory for large results that is used again."""

import copy
import ctypes
import gc
import multiprocessing
import resource
import threading
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import precast
from precast.runtime import memory
from precast.runtime.memory import LARGE, RecycledMemory, take_large
from precast.runtime.tensors import allocate, allocate_array

PAGE = 4096


def address(block):
    return ctypes.addressof(block)


@pytest.fixture
def pages():
    return RecycledMemory(64 * PAGE)


def test_what_died_is_used_again(pages):
    first = pages.take(3 * PAGE)
    place = address(first)
    del first
    assert address(pages.take(2 * PAGE)) == place


def test_neighbours_that_died_make_room_for_something_larger(pages):
    blocks = [pages.take(PAGE) for _ in range(4)]
    place = address(blocks[1])
    del blocks[2], blocks[1]
    gap = pages.take(2 * PAGE)
    assert address(gap) == place


def test_no_room_is_none(pages):
    whole = pages.take(64 * PAGE)
    assert pages.take(1) is None
    del whole
    assert pages.take(64 * PAGE) is not None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5 * PAGE), st.booleans(), st.integers(0, 9)), max_size=60))
def test_living_blocks_never_overlap(requests):
    pages, living = RecycledMemory(256 * PAGE), []
    for size, dies, which in requests:
        block = pages.take(size)
        if block is not None:
            ctypes.memset(block, len(living) % 251, size)
            living.append(block)
        if dies and living:
            living.pop(which % len(living))
        spans = sorted((address(each), address(each) + len(each)) for each in living)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    block = None
    living.clear()
    assert pages.take(256 * PAGE) is not None


def test_pages_that_nobody_needs_go_back_to_the_system(pages, monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE", 8)
    many = [pages.take(PAGE) for _ in range(32)]
    many[31][0] = b"x"
    del many
    assert pages.touched == 32 * PAGE
    for _ in range(16):
        pages.take(2 * PAGE)
    assert pages.touched == 2 * PAGE
    tail = pages.take(32 * PAGE)
    assert tail[31 * PAGE] == b"\0"


def test_pages_in_use_stay(pages, monkeypatch):
    monkeypatch.setattr(memory, "_PATIENCE", 4)
    low, high = pages.take(4 * PAGE), pages.take(4 * PAGE)
    high[PAGE] = b"x"
    del low
    for _ in range(16):
        pages.take(PAGE)
    assert high[PAGE] == b"x"


def test_many_threads_at_once():
    pages, problems = RecycledMemory(1024 * PAGE), []

    def work(number):
        for size in range(1, 200):
            block = pages.take(size * 37)
            ctypes.memset(block, number, len(block))
            if set(block.raw) != {number}:
                problems.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not problems


def test_small_results_come_from_elsewhere():
    assert take_large(LARGE - 1) is None


def test_a_large_torch_result_is_like_any_other():
    made = allocate((2, 32), (300, 500), (1, 300), like_torch=True)
    assert made.dtype == torch.float32
    assert (made.shape, made.stride()) == ((300, 500), (1, 300))
    assert not made._is_view()
    assert made.untyped_storage().nbytes() == 300 * 500 * 4
    made.fill_(2)
    assert copy.deepcopy(made).sum() == 300_000
    made.share_memory_()
    assert made.sum() == 300_000


def test_a_large_array_lies_as_it_should():
    made = allocate_array(np.dtype(np.float64), (300, 500), (1, 300))
    made[:] = 1
    assert made.strides == (8, 2400)
    assert made.sum() == 150_000


def test_results_that_are_kept_are_not_written_over():
    double = precast.compile(lambda x: x * 2)
    inputs = [torch.full((400, 400), float(number)) for number in range(6)]
    results = [double(each) for each in inputs]
    gc.collect()
    assert [each[0, 0].item() for each in results] == [0, 2, 4, 6, 8, 10]


def _double(queue):
    block = take_large(LARGE)
    block[0] = b"y"
    queue.put(bytes(block[:1]))


def test_a_forked_process_has_memory_of_its_own():
    block = take_large(LARGE)
    block[0] = b"x"
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_double, args=(queue,))
    child.start()
    assert queue.get(timeout=30) == b"y"
    child.join()
    assert block[0] == b"x"


def faults_of(act):
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    act()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


@pytest.mark.parametrize("threads", [1, 3])
def test_blocks_that_were_made_ready_have_their_pages(threads):
    memory = RecycledMemory(1 << 30)
    blocks = [memory.take(10_000_001) for _ in range(4)]
    memory.make_ready(threads)
    assert faults_of(lambda: [ctypes.memset(block, 1, len(block)) for block in blocks]) < 1000
    assert all(block[len(block) - 1] == b"\x01" for block in blocks)


def test_few_fresh_pages_are_left_to_come_when_they_are_touched():
    memory = RecycledMemory(1 << 30)
    block = memory.take(4 << 20)
    assert faults_of(lambda: memory.make_ready(2)) < 100
    assert faults_of(lambda: ctypes.memset(block, 1, len(block))) >= 1000
