"""What the behaviours ask with: modules made of a function, and what must hold of a program."""

import re
from typing import Any

import torch
from torch import nn


class raises:  # noqa: N801
    """Something of this kind must be raised, and its text must have that in it."""

    def __init__(self, kind: Any, text: str = "") -> None:
        self.kind, self.text = kind, text

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        assert kind is not None, "nothing was raised"
        if not issubclass(kind, self.kind):
            return False
        assert re.search(self.text, str(error)), str(error)
        return True


def module_of(forward: Any, **state: Any) -> nn.Module:
    """A module with this forward; tensors are buffers, everything else what it is."""
    made = type("Made", (nn.Module,), {"forward": forward})()
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and not isinstance(value, nn.Parameter):
            made.register_buffer(name, value)
        else:
            setattr(made, name, value)
    return made


def operators(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def assert_close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, equal_nan=True)


def agrees_with_eager(peer: Any, model: nn.Module, args: Any, kwargs: Any = None, **options: Any) -> Any:
    """The program of this call, which computes what the module does."""
    program = peer.export(model, args, kwargs, **options)
    assert_close(program.module()(*args, **(kwargs or {})), model(*args, **(kwargs or {})))
    return program
