"""Models exported by symbolic tracing, with and without weights."""

import onnx
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import precast
from precast.errors import InputValueError, OnnxError
from precast.onnx import export
from precast.onnx.weights import missing_in
from precast.trace.capture import Dim


class Encoder(nn.Module):
    def __init__(self, device=None):
        super().__init__()
        self.tokens = nn.Embedding(10, 8, device=device)
        self.positions = nn.Embedding(16, 8, device=device)
        self.mix = nn.Linear(8, 8, device=device)
        self.norm = nn.LayerNorm(8, device=device)

    def forward(self, ids, mask=None, *, scale=2.0):
        batch, length = ids.shape
        x = self.tokens(ids) * scale + self.positions(torch.arange(length))
        if mask is not None:
            x = x.masked_fill(mask[..., None], torch.finfo(x.dtype).tiny)
        return {"states": self.norm(torch.relu(self.mix(x))), "ones": torch.ones(batch)}


IDS = torch.tensor([[1, 2, 3], [4, 5, 6]])
SIZES = {0: Dim("batch", max=8), 1: Dim("length", max=16)}


def test_symbolic_and_aten_capture_agree():
    model = Encoder().eval()
    shapes = {"ids": SIZES, "mask": SIZES}
    program = export(model, (IDS,), kwargs={"mask": IDS > 4}, capture="symbolic", dynamic_shapes=shapes)
    assert program.verification.checked == ("structure", "example inputs", "batch=3, length=4")
    torch.testing.assert_close(program.call_as_model(IDS, mask=IDS > 4), model(IDS, IDS > 4))


def test_a_model_on_meta_gives_structure_and_takes_weights_later(tmp_path):
    program = export(Encoder("meta").eval(), (IDS,), capture="symbolic", dynamic_shapes={"ids": SIZES})
    assert sorted(missing_in(program.model)) == sorted(Encoder().state_dict())
    with pytest.raises(OnnxError, match="no values for"):
        program.call_as_model(IDS)
    model = Encoder().eval()
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    program.attach_weights(tmp_path / "weights.safetensors")
    for ids in (IDS, IDS.repeat(2, 3)):
        torch.testing.assert_close(program.call_as_model(ids), model(ids))


def test_no_weight_is_allocated():
    huge = nn.Sequential(nn.Linear(10**7, 10**7, device="meta"), nn.ReLU())
    program = export(huge, (torch.empty(1, 10**7, device="meta"),), capture="symbolic")
    assert program.model.graph.initializers["0.weight"].const_value.nbytes == 4 * 10**14


def test_structure_alone_can_be_saved(tmp_path):
    export(Encoder("meta"), (IDS,), capture="symbolic", path=tmp_path / "structure.onnx")
    names = [value.name for value in onnx.load(tmp_path / "structure.onnx").graph.input]
    assert names == ["ids", "tokens.weight", "positions.weight", "mix.weight", "mix.bias", "norm.weight", "norm.bias"]


def test_protobuf_message_needs_weights():
    program = export(Encoder("meta"), (IDS,), capture="symbolic")
    with pytest.raises(OnnxError, match="no values for"):
        _ = program.model_proto


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop("mix.bias"), "no tensor for mix.bias"),
        (lambda state: state.update({"mix.bias": torch.ones(3)}), r"mix\.bias is FLOAT\[3\]"),
        (lambda state: state.update({"mix.bias": state["mix.bias"].half()}), r"mix\.bias is FLOAT16\[8\]"),
    ],
)
def test_weights_that_do_not_fit_are_refused_whole(tmp_path, change, message):
    program = export(Encoder("meta"), (IDS,), capture="symbolic")
    state = Encoder().state_dict()
    change(state)
    save_file(state, tmp_path / "weights.safetensors")
    with pytest.raises(InputValueError, match=message):
        program.attach_weights(tmp_path / "weights.safetensors")
    assert len(missing_in(program.model)) == len(Encoder().state_dict())


def test_a_damaged_file_of_weights(tmp_path):
    (tmp_path / "weights.safetensors").write_bytes(b"nonsense")
    program = export(Encoder("meta"), (IDS,), capture="symbolic")
    with pytest.raises(InputValueError, match="cannot be read"):
        program.attach_weights(tmp_path / "weights.safetensors")


def test_a_module_that_was_traced_with_a_branch_not_taken():
    def function(x):
        if x.sum() > 0:
            return x
        return x.relu()

    x = torch.tensor([-1.0, 0.5])
    traced = precast.symbolic_trace(function, assume_false=True)
    assert export(traced, (x,), capture="symbolic").call_as_model(x).tolist() == [0, 0.5]
