"""Arrays whose memory is not what it seems: read as numpy and torch read them, or refused; never outside of them."""

import ctypes

import numpy as np
import pytest
import torch

import precast
import precast.runtime
from precast.errors import InputTypeError, InputValueError
from precast.runtime.native import load_library
from precast.runtime.tensors import CTensor, as_tensor

LARGEST = 2**63 - 1


class Counted(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.arange(1.0, 4.0))

    def forward(self, x, written):
        written.add_(1)
        self.scale.mul_(1)
        return x * self.scale + written.sum(), torch.outer(x[:, 0], x[:, 0])


@pytest.fixture(scope="module", params=[True, False], ids=["native", "interpreted"])
def model(request, tmp_path_factory):
    shapes = ({0: precast.Dim("rows")}, {0: precast.Dim("more")})
    path = tmp_path_factory.mktemp("arrays") / "model.precast"
    arguments = (torch.ones(4, 3), torch.ones(6))
    precast.package(Counted(), arguments, path=path, dynamic_shapes=shapes)
    return precast.runtime.load(path, allow_native=request.param)


def expected(x, written):
    return x * np.arange(1.0, 4.0, dtype=np.float32) + (written.astype(np.float64) + 1).sum(), np.outer(
        x[:, 0], x[:, 0]
    )


def records(numbers, offset=1):
    """The numbers as a field of records of an odd size: elements are no whole elements apart."""
    kind = np.dtype({"names": ["field"], "formats": [numbers.dtype], "offsets": [offset], "itemsize": 4 + offset + 2})
    made = np.zeros(numbers.shape, kind)
    made["field"] = numbers
    return made["field"]


def misaligned(numbers):
    memory = np.zeros(numbers.nbytes + 1, np.uint8)[1:]
    made = memory.view(numbers.dtype).reshape(numbers.shape)
    made[...] = numbers
    return made


LAYOUTS = {
    "a field of records": records,
    "a field of records, backwards": lambda numbers: records(numbers[::-1])[::-1],
    "backwards": lambda numbers: numbers[::-1].copy()[::-1],
    "misaligned": misaligned,
    "transposed": lambda numbers: np.asfortranarray(numbers),
    "spread": lambda numbers: np.repeat(numbers, 3, axis=0)[::3],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_numbers_and_updates_do_not_depend_on_how_an_array_is_laid_out(model, layout):
    x, written = np.random.default_rng(0).standard_normal((5, 3), np.float32), np.arange(7, dtype=np.float32)
    given, target = LAYOUTS[layout](x), LAYOUTS[layout](written)
    right = expected(x, written)
    for result, wanted in zip(model(given, target), right, strict=True):
        np.testing.assert_allclose(result, wanted, rtol=1e-6)
    np.testing.assert_array_equal(target, np.arange(1, 8))
    np.testing.assert_array_equal(given, x)


@pytest.mark.parametrize("layout", ["a field of records", "backwards", "misaligned"])
def test_state_takes_arrays_as_they_are_laid_out(model, layout):
    before = model.state["scale"]
    model.state["scale"] = LAYOUTS[layout](np.array([5.0, 6.0, 7.0], np.float32))
    assert model.state["scale"].tolist() == [5, 6, 7]
    model.state["scale"] = before


def test_other_byte_orders_are_refused(model):
    swapped = np.ones((4, 3), np.dtype(np.float32).newbyteorder())
    with pytest.raises(InputValueError, match="but the program was captured with float32"):
        model(swapped, np.ones(6, np.float32))
    with pytest.raises((InputValueError, InputTypeError)):
        model.state["scale"] = np.ones(3, np.dtype(np.float32).newbyteorder())


def test_tensors_that_torch_negates_lazily_are_negated(model):
    x, written = torch.ones(2, 3), torch._neg_view(torch.ones(3))
    results = model(torch._neg_view(x), written)
    torch.testing.assert_close(results[0], -torch.arange(1.0, 4.0).expand(2, 3))
    torch.testing.assert_close(written, torch.zeros(3))
    model.state["scale"] = torch._neg_view(-torch.arange(1.0, 4.0))
    assert model.state["scale"].tolist() == [1, 2, 3]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("kind", ["sparse", "mkldnn", "nested"])
def test_tensors_without_plain_memory_are_refused(model, kind):
    made = {
        "sparse": lambda: torch.ones(4, 3).to_sparse(),
        "mkldnn": lambda: torch.ones(4, 3).to_mkldnn(),
        "nested": lambda: torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(1, 3)]),
    }[kind]()
    with pytest.raises(InputValueError, match="is a tensor with the layout"):
        model(made, torch.ones(6))
    with pytest.raises(InputTypeError, match="layout"):
        model.state["scale"] = made


@pytest.mark.parametrize("rows", [2**31, 2**40, 2**59, 2**61, 2**62, LARGEST])
def test_sizes_that_no_memory_holds_are_refused_before_anything_is_allocated(tmp_path_factory, rows):
    path = tmp_path_factory.getbasetemp() / "outer.precast"
    if not path.exists():
        shapes = ({0: precast.Dim("rows")},)
        precast.package(lambda x: torch.outer(x, x).cos(), (torch.ones(4),), path=path, dynamic_shapes=shapes)
    model = precast.runtime.load(path)
    with pytest.raises(InputValueError, match="larger than any memory"):
        model(torch.zeros(1).expand(rows))


def test_sizes_that_no_memory_holds_are_refused_in_process():
    compiled = precast.compile(lambda x: torch.outer(x, x).cos(), dynamic=True)
    torch.testing.assert_close(compiled(torch.ones(5)), torch.ones(5, 5).cos())
    for rows in (2**40, 2**62, LARGEST):
        with pytest.raises((InputValueError, RuntimeError), match=r"larger than any memory|overflow|too large"):
            compiled(torch.zeros(1).expand(rows))


def test_empty_tensors_of_many_rows_are_nothing_to_do(tmp_path):
    shapes = ({0: precast.Dim("rows"), 1: precast.Dim("columns", min=0)},)
    path = precast.package(lambda x: x.sum(0), (torch.ones(4, 3),), path=tmp_path / "m.precast", dynamic_shapes=shapes)
    model = precast.runtime.load(path)
    assert model(torch.empty(2**50, 0)).shape == (0,)
    memory = np.zeros(9, np.uint8)[1:]
    assert model(np.ndarray((2**50, 0), np.float32, memory)).shape == (0,)


def test_numbers_beyond_64_bits_are_refused():
    for number in (2**63, -(2**70), 10**400):
        with pytest.raises(InputValueError, match="64 bits"):
            as_tensor(number, name="n")


def test_what_does_not_hand_over_its_memory_is_refused(model):
    class Broken:
        def __dlpack__(self, **_):
            raise BufferError("not today")

        def __dlpack_device__(self):
            return 1, 0

    with pytest.raises(InputValueError):
        model(Broken(), np.ones(6, np.float32))
    with pytest.raises(InputTypeError, match="not today"):
        model.state["scale"] = Broken()


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    options = {"output_path": tmp_path_factory.mktemp("c") / "m.so"}
    shapes = ({0: precast.Dim("rows")},)
    path = precast.aot_compile(lambda x: torch.outer(x, x), (torch.ones(4),), dynamic_shapes=shapes, options=options)
    return load_library(path).handle


def test_callers_in_c_get_a_status_for_sizes_that_no_memory_holds(library):
    opened, number = ctypes.c_void_p(), ctypes.c_float()
    assert library.precast_open(None, ctypes.byref(opened)) == 0
    for rows in (2**31, 2**61, LARGEST, -1):
        for strides in (None, (ctypes.c_int64 * 1)(0)):
            x = CTensor(ctypes.addressof(number), 1, 0, 1, 2, 32, 1, (ctypes.c_int64 * 1)(rows), strides, 0)
            sizes = (ctypes.c_int64 * 2)(rows, rows), (ctypes.c_int64 * 2)(rows, 1)
            y = CTensor(ctypes.addressof(number), 1, 0, 2, 2, 32, 1, *sizes, 0)
            assert library.precast_infer(opened, 0, ctypes.byref(x), 1, ctypes.byref(y), 1) == 2
            assert library.precast_run(opened, 0, ctypes.byref(x), 1, ctypes.byref(y), 1) == 2
    assert library.precast_close(opened) == 0
