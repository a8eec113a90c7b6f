"""``module.to(…)`` inside of a traced program: nothing where it changes nothing, an error where it would change state.

Before: ``self.router = self.router.to(torch.float32)``, whose parameters are of that type already
After:  the same module; its parameters, which tracing has stand-ins for, are not exchanged for new ones
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch

from precast.errors import StateMutationError
from precast.tracing.provenance import innermost_users_line


@contextmanager
def idle_conversions(
    is_real: Callable[[object], bool], substitute: Callable[[torch.Tensor], torch.Tensor]
) -> Iterator[None]:
    """While active, modules of real tensors may be converted on this thread to what they are.

    ``substitute`` returns what stands for a real tensor; a conversion that returns just that has changed nothing.
    """
    thread = threading.get_ident()
    original: Callable[..., Any] = torch.nn.Module._apply

    def apply(module: torch.nn.Module, convert: Callable[[torch.Tensor], Any], recurse: bool = True) -> Any:
        own = [*module._parameters.values(), *module._buffers.values()]
        if threading.get_ident() != thread or not any(is_real(tensor) for tensor in own):
            return original(module, convert, recurse)
        for child in module.children() if recurse else ():
            child._apply(convert)
        for tensor in own:
            if tensor is None:
                continue
            with torch.no_grad():
                converted = convert(tensor)
            if converted is not tensor and converted is not substitute(tensor):
                raise StateMutationError(
                    f"The program converts the parameters or buffers of a {type(module).__qualname__}.",
                    at=innermost_users_line(),
                    why="a captured program has the parameters that its modules had before",
                    fix="Convert the module before it is compiled.",
                )
        return module

    with patch.object(torch.nn.Module, "_apply", apply):
        yield
