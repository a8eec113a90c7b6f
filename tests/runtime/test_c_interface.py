"""The C interface by itself: every misuse gives a status and a text, and state is read and written."""

import ctypes

import numpy as np
import pytest
import torch

import precast
from precast.runtime.libraries import preload
from precast.runtime.native import ABI_VERSION, load_library
from precast.runtime.tensors import CTensor

OK, INVALID, MISMATCH = 0, 1, 2


@pytest.fixture(autouse=True)
def nothing_is_printed(capfd):
    """Whatever a program asks for, rightly or wrongly, its own streams stay its own."""
    yield
    assert capfd.readouterr() == ("", "")


class OpenOptions(ctypes.Structure):
    _fields_ = (
        ("abi_version", ctypes.c_uint32),
        ("threads", ctypes.c_int32),
        ("weights", ctypes.c_void_p),
        ("weight_count", ctypes.c_size_t),
        ("weights_path", ctypes.c_char_p),
        ("fallback", ctypes.c_void_p),
        ("fallback_data", ctypes.c_void_p),
    )


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor([[1.0, 2.0, 3.0]]))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        self.calls += 1
        return x * self.scale, (x @ self.scale.t())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    shapes = {"x": {0: precast.Dim("rows", min=2, max=9)}}
    target = tmp_path_factory.mktemp("c") / "scaled.so"
    return precast.aot_compile(Scaled(), (torch.ones(4, 3),), dynamic_shapes=shapes, options={"output_path": target})


@pytest.fixture(scope="module")
def library(path):
    preload(("libdnnl.so.3",))
    return load_library(path).handle


@pytest.fixture
def model(library):
    opened = ctypes.c_void_p()
    assert library.precast_open(None, ctypes.byref(opened)) == OK
    yield opened
    assert library.precast_close(opened) == OK


def tensor(array, *, strides=True):
    steps = [step // array.itemsize for step in array.strides]
    numbers = ctypes.c_int64 * array.ndim
    code = {"f": 2, "i": 0}[array.dtype.kind]
    made = CTensor(array.ctypes.data, 1, 0, array.ndim, code, array.itemsize * 8, 1, numbers(*array.shape), None, 0)
    if strides:
        made.strides = numbers(*steps)
    return made


def said(library):
    return library.precast_last_error().decode()


def run(library, model, x, count=2):
    outputs = (CTensor * 2)(tensor(np.empty((len(x), 3), np.float32)), tensor(np.empty((len(x), 1), np.float32)))
    inputs = (CTensor * 1)(tensor(x))
    return library.precast_run(model, 0, inputs, 1, outputs, count), outputs


def test_a_call_updates_the_state_and_a_failed_one_does_not(library, model):
    calls = np.zeros((), np.int64)
    assert run(library, model, np.ones((2, 3), np.float32))[0] == OK
    assert run(library, model, np.ones((2, 3), np.float32), count=1)[0] == MISMATCH
    assert library.precast_read_state(model, b"calls", ctypes.byref(tensor(calls))) == OK
    assert calls == 1


@pytest.mark.parametrize(("rows", "status"), [(1, MISMATCH), (2, OK), (9, OK), (10, MISMATCH)])
def test_sizes_outside_of_the_range_are_refused(library, model, rows, status):
    assert run(library, model, np.ones((rows, 3), np.float32))[0] == status
    if status:
        assert f"the size {rows} is not one that the entry was compiled for" in said(library)


def test_names_and_counts(library, model):
    count, name, number = ctypes.c_size_t(), ctypes.c_char_p(), ctypes.c_size_t()
    assert library.precast_state_count(model, ctypes.byref(count)) == OK
    names = set()
    for each in range(count.value):
        assert library.precast_state_name(model, each, ctypes.byref(name)) == OK
        names.add(name.value)
    assert names == {b"scale", b"calls"}
    assert library.precast_find_entry(model, b"forward", ctypes.byref(number)) == OK
    assert number.value == 0
    assert library.precast_find_entry(model, b"other", ctypes.byref(number)) == INVALID
    assert said(library) == "there is no entry 'other'"


def test_state_is_written_in_any_layout(library, model):
    columns = np.asfortranarray(np.array([[4.0], [5.0], [6.0]], np.float32)).T
    assert library.precast_write_state(model, b"scale", ctypes.byref(tensor(columns))) == OK
    status, outputs = run(library, model, np.ones((2, 3), np.float32))
    assert status == OK
    read = np.zeros((1, 3), np.float32)
    assert library.precast_read_state(model, b"scale", ctypes.byref(tensor(read, strides=False))) == OK
    assert read.tolist() == [[4.0, 5.0, 6.0]]
    product = ctypes.cast(outputs[1].data, ctypes.POINTER(ctypes.c_float))
    assert product[0] == 15.0


def test_the_library_is_not_changed_by_one_model_writing(library, model):
    other = ctypes.c_void_p()
    assert library.precast_open(None, ctypes.byref(other)) == OK
    assert library.precast_write_state(model, b"scale", ctypes.byref(tensor(np.zeros((1, 3), np.float32)))) == OK
    read = np.zeros((1, 3), np.float32)
    assert library.precast_read_state(other, b"scale", ctypes.byref(tensor(read))) == OK
    assert read.tolist() == [[1.0, 2.0, 3.0]]
    assert library.precast_close(other) == OK


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((1, 3)), "dtype"),
        (np.zeros(3, np.float32), "expected 2 dimensions, got 1"),
        (np.zeros((3, 1), np.float32), "dimension 0 is 3, expected 1"),
    ],
)
def test_state_of_another_kind_is_refused(library, model, array, message):
    for function in (library.precast_read_state, library.precast_write_state):
        assert function(model, b"scale", ctypes.byref(tensor(array))) == MISMATCH
        assert message in said(library)
        assert function(model, b"other", ctypes.byref(tensor(array))) == INVALID


def test_null_pointers_are_refused(library, model):
    target = ctypes.byref(tensor(np.zeros((1, 3), np.float32)))
    number, text = ctypes.byref(ctypes.c_size_t()), ctypes.byref(ctypes.c_char_p())
    calls = [
        (library.precast_open, None, None), (library.precast_entry_count, None, number),
        (library.precast_entry_count, model, None), (library.precast_entry_name, model, 0, None),
        (library.precast_entry_name, model, 7, text), (library.precast_entry_json, None, 0, text),
        (library.precast_find_entry, model, None, number), (library.precast_state_count, model, None),
        (library.precast_state_name, model, 9, text), (library.precast_describe_state, model, b"scale", None),
        (library.precast_read_state, model, None, target), (library.precast_read_state, None, b"scale", target),
        (library.precast_write_state, model, b"scale", None), (library.precast_run, model, 0, None, 1, None, 2),
        (library.precast_run, model, 5, None, 0, None, 0), (library.precast_infer, None, 0, None, 0, None, 0),
        (library.precast_manifest_json, None),
    ]  # fmt: skip
    for function, *arguments in calls:
        assert function(*arguments) == INVALID, function
        assert said(library)


def opened_with(library, **options):
    made = ctypes.c_void_p()
    given = OpenOptions(**{"abi_version": ABI_VERSION, **options})
    address = ctypes.cast(ctypes.byref(given), library.precast_open.argtypes[0])
    return library.precast_open(address, ctypes.byref(made)), made


def test_another_version_is_refused(library):
    assert opened_with(library, abi_version=99)[0] == INVALID
    assert "version" in said(library)


def test_weights_from_a_file_that_is_missing_or_damaged(library, tmp_path):
    assert opened_with(library, weights_path=b"/does/not/exist")[0] == INVALID
    assert "cannot be read" in said(library)
    for content in (
        b"",
        b"x",
        b"\xff" * 64,
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        (9).to_bytes(8, "little") + b'{"scale":',
        (100).to_bytes(8, "little") + (b'{"a":{"b":' * 30)[:100],
        (52).to_bytes(8, "little") + b'{"scale":{"shape":[1,3],"data_offsets":[0,99999999]}}'[:52],
        (47).to_bytes(8, "little") + b'{"scale":{"shape":[1,3],"data_offsets":[0,4]}}  ' + bytes(4),
        (64).to_bytes(8, "little") + b'{"scale":{"data_offsets":[99999999999999999999999,1]}}'.ljust(64) + bytes(64),
    ):
        (tmp_path / "weights").write_bytes(content)
        assert opened_with(library, weights_path=str(tmp_path / "weights").encode())[0] in (INVALID, MISMATCH)


def test_the_number_of_threads_can_be_chosen(library):
    status, model = opened_with(library, threads=1)
    assert status == OK
    assert run(library, model, np.ones((2, 3), np.float32))[0] == OK
    assert library.precast_close(model) == OK


@pytest.mark.parametrize("threads", [-1, 4097, 2**31 - 1])
def test_a_number_of_threads_that_no_system_gives_is_refused(library, threads):
    opened = ctypes.c_void_p()
    options = OpenOptions(abi_version=ABI_VERSION, threads=threads)
    address = ctypes.cast(ctypes.byref(options), library.precast_open.argtypes[0])
    assert library.precast_open(address, ctypes.byref(opened)) == INVALID
    assert f"cannot use {threads} threads" in said(library)
