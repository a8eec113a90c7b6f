"""Programs that no graph can hold, and calls that make no sense: each has its own error, with the user's line."""

import pytest
import torch

from precast.errors import DataDependentError, InputTypeError, InputValueError, UnsupportedOpError
from precast.graph.interpreter import interpret
from precast.trace.capture import Dim, capture

x = torch.ones(3)


def test_a_branch_on_data():
    def function(a):
        if a.sum() > 0:
            return a
        return -a

    with pytest.raises(DataDependentError) as failure:
        capture(function, (x,))
    assert "if a.sum() > 0:" in failure.value.at
    assert "torch.where" in failure.value.fix
    assert "precast.compile without fullgraph=True" in failure.value.fix


def test_a_loop_over_data():
    with pytest.raises(DataDependentError) as failure:
        capture(lambda a: [a * i for i in range(int(a.sum()))], (x,))
    assert "range(int(a.sum()))" in failure.value.at


def test_a_list_of_data():
    with pytest.raises(DataDependentError):
        capture(lambda a: a.tolist()[0] > 2 and a, (x,))


def test_numpy_of_data():
    with pytest.raises(DataDependentError) as failure:
        capture(lambda a: a.numpy().sum(), (x,))
    assert "a.numpy()" in failure.value.at


def test_item_gives_a_symbol_and_no_error():
    def function(a):
        return a * a.sum().item()

    torch.testing.assert_close(interpret(capture(function, (x,)), x), x * 3)


def test_sizes_that_depend_on_data_are_symbols():
    program = capture(lambda a: a[a > 0] * 2, (x,))
    torch.testing.assert_close(interpret(program, torch.tensor([1.0, -1.0, 2.0])), torch.tensor([2.0, 4.0]))


def test_checks_narrow_what_is_unknown():
    def function(a):
        count = a.sum().to(torch.int64).item()
        torch._check(count >= 2)
        torch._check(count <= 10)
        return torch.zeros(count) + 1

    assert interpret(capture(function, (x,)), x).shape == (3,)


def test_an_operator_without_fake_kernel():
    with torch.library._scoped_library("precast_test", "FRAGMENT") as library:
        library.define("opaque(Tensor x) -> Tensor")
        library.impl("opaque", lambda a: a * 2, "CPU")

        def function(a):
            return torch.ops.precast_test.opaque(a)

        with pytest.raises(UnsupportedOpError, match=r"precast_test\.opaque") as failure:
            capture(function, (x,))
    assert "torch.ops.precast_test.opaque(a)" in failure.value.at
    assert "register_fake" in failure.value.fix


def test_the_users_own_errors_pass_through():
    def function(a):
        raise FileNotFoundError("weights.bin")

    with pytest.raises(FileNotFoundError, match=r"weights\.bin"):
        capture(function, (x,))


def test_shape_errors_are_eagers():
    with pytest.raises(RuntimeError, match="broadcast"):
        capture(lambda a: a + torch.ones(2), (x,))


@pytest.mark.parametrize("thing", [3, None, "model", torch.ones(2)])
def test_not_a_callable(thing):
    with pytest.raises(InputTypeError, match="cannot be called"):
        capture(thing, (x,))


def test_arguments_that_are_no_tuple():
    with pytest.raises(InputTypeError, match="The example arguments are a Tensor"):
        capture(torch.sin, x)


def test_keyword_arguments_that_are_no_dict():
    with pytest.raises(InputTypeError, match="keyword arguments are a list"):
        capture(lambda a: a, (x,), [x])


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((x, x), {}), ((x,), {"b": x})])
def test_arguments_that_do_not_fit_the_signature(args, kwargs):
    with pytest.raises(InputTypeError, match="do not fit the function's signature"):
        capture(lambda a: a, args, kwargs)


def test_an_argument_of_unknown_type():
    with pytest.raises(InputTypeError, match=r"a is of type object"):
        capture(lambda a: x, (object(),))


def test_a_lazy_module_that_was_never_called():
    with pytest.raises(InputValueError, match="weight has no shape yet"):
        capture(torch.nn.LazyLinear(2), (torch.ones(1, 3),))


def test_meta_tensors_beside_real_ones():
    with pytest.raises(InputValueError, match="more than one device") as failure:
        capture(torch.add, (x, torch.ones(3, device="meta")))
    assert "arg0 on cpu, arg1 on meta" in failure.value.why


def test_a_meta_module_with_real_inputs():
    with pytest.raises(InputValueError, match="more than one device"):
        capture(torch.nn.Linear(3, 2, device="meta"), (x,))


def test_a_meta_module_with_meta_inputs_is_fine():
    program = capture(torch.nn.Linear(3, 2, device="meta"), (torch.ones(1, 3, device="meta"),))
    assert program.results[0].meta["val"].device.type == "meta"


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_script_module():
    with pytest.raises(InputValueError, match="TorchScript"):
        capture(torch.jit.script(torch.nn.Linear(3, 2)), (x,))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_script_function():
    def double(a: torch.Tensor):
        return a * 2

    with pytest.raises(InputValueError, match="TorchScript"):
        capture(torch.jit.script(double), (x,))


def test_sparse_inputs_are_told_apart():
    program = capture(lambda a: a.to_dense() * 2, (torch.eye(2).to_sparse(),))
    torch.testing.assert_close(interpret(program, torch.eye(2).to_sparse()), torch.eye(2) * 2)


def test_a_dim_with_an_empty_range():
    with pytest.raises(InputValueError, match=r"empty range 5\.\.3"):
        Dim("batch", min=5, max=3)


def test_torch_logs_nothing_where_a_program_fails_on_fake_tensors(caplog):
    with pytest.raises(RuntimeError, match=r"same reduction dim|cannot be multiplied"):
        capture(torch.nn.Linear(4, 2), (torch.ones(3, 5),), dynamic_shapes={"input": {0: Dim("batch")}})
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]
