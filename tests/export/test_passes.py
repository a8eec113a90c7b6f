"""Passes over programs that users call."""

import torch
from torch import nn

from precast.export import export, load, save
from precast.export.passes import move_to_device_pass


class Placed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.shift = nn.Parameter(torch.ones(2)), torch.ones(2)

    def forward(self, x):
        branch = torch.cond(x.sum() > 0, lambda x: x + torch.ones(2, device="cpu"), lambda x: x - 1, (x,))
        return branch.to("cpu") * self.weight + self.shift


def test_a_program_is_moved_to_another_device(tmp_path):
    exported = export(Placed(), (torch.ones(2),))
    moved = move_to_device_pass(exported, "meta")
    tensors = [*moved.state_dict.values(), *moved.constants.values()]
    values = [node.meta["val"] for node in moved.graph.nodes if isinstance(node.meta.get("val"), torch.Tensor)]
    assert {each.device.type for each in (*tensors, *values)} == {"meta"}
    assert exported.state_dict["weight"].device.type == "cpu"
    torch.testing.assert_close(exported.module()(torch.ones(2)), Placed()(torch.ones(2)))
    save(moved, tmp_path / "described.pt2")
    weight = load(tmp_path / "described.pt2").state_dict["weight"]
    assert (weight.device.type, weight.shape, weight.requires_grad) == ("meta", (2,), True)
