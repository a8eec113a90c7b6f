"""Passes over exported programs for users.

Before: ``ones(2, device=cpu)``, weights on ``cpu``
After:  ``ones(2, device=cuda)``, weights on ``cuda``
"""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from precast.export.program import ExportedProgram
from precast.export.verifier import graphs_of

Location = str | torch.device | Mapping[str, str]


def move_to_device_pass(ep: ExportedProgram, location: Location) -> ExportedProgram:
    """The program on another device, or with devices mapped: its state, its constants and the tensors it creates.

    >>> from precast.export import export
    >>> moved = move_to_device_pass(export(torch.nn.Linear(2, 2), (torch.ones(1, 2),)), "meta")
    >>> moved.state_dict["weight"].device
    device(type='meta')
    """
    program = ep.program
    module = copy.deepcopy(program.module)
    for _, graph in graphs_of(module):
        for node in graph.nodes:
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), lambda arg: _moved(arg, location))
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map(lambda value: _moved(value, location), node.meta["val"])
    module.recompile()
    state = {name: _moved_state(tensor, location) for name, tensor in program.state.items()}
    return ep.replace(program.replace(module=module, state=state))


def _place(device: torch.device, location: Location) -> torch.device:
    if isinstance(location, Mapping):
        return torch.device(location.get(str(device), location.get(device.type, str(device))))
    return torch.device(location)


def _moved(value: Any, location: Location) -> Any:
    if isinstance(value, torch.device):
        return _place(value, location)
    if isinstance(value, FakeTensor):
        with value.fake_mode:
            return value.to(_place(value.device, location))
    return value


def _moved_state(tensor: torch.Tensor, location: Location) -> torch.Tensor:
    moved = tensor.detach().to(_place(tensor.device, location)).requires_grad_(tensor.requires_grad)
    return torch.nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else moved
