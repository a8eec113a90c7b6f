"""Writing in place: into the tensor as it is, or refused as in eager."""

import pytest
import torch

import precast
from precast.compilers import nop

WRITES = [
    torch.Tensor.atan2_, torch.Tensor.pow_, torch.Tensor.add_, torch.Tensor.fmod_, torch.Tensor.clamp_,
    torch.Tensor.ge_, torch.Tensor.copysign_, torch.Tensor.floor_divide_, torch.Tensor.xlogy_, torch.Tensor.copy_,
]  # fmt: skip


@pytest.mark.thinned
@pytest.mark.parametrize("write", WRITES, ids=lambda write: write.__name__)
@pytest.mark.parametrize("is_input", [True, False])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_result_does_not_make_the_tensor_grow_that_it_is_written_into(write, is_input, dynamic):
    def program(x, y):
        return write(x if is_input else x + 1, y)

    compiled = precast.compile(program, backend=nop, dynamic=dynamic)
    with pytest.raises(RuntimeError, match=r"doesn't match the broadcast shape|expand"):
        compiled(torch.ones(3, 1), torch.ones(3, 4))
    torch.testing.assert_close(
        compiled(torch.ones(3, 4), torch.ones(3, 1)), program(torch.ones(3, 4), torch.ones(3, 1))
    )


def test_tensors_that_are_resized_or_get_another_shape_may_be_written_into():
    def program(x):
        y = (x + 1).unsqueeze_(0).add_(x)
        z = x * 2
        z.resize_(2).fill_(7)
        return y, z.pow_(2), z.t_()

    for result, right in zip(precast.compile(program, backend=nop)(torch.ones(3)), program(torch.ones(3)), strict=True):
        torch.testing.assert_close(result, right)
