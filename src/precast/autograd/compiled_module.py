"""A module whose forward is compiled and that in every other respect still is the module it was made from."""

import copy
from collections.abc import Callable
from typing import Any

import torch

CompileFunction = Callable[[Any], Callable[..., Any]]

_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class CompiledModule(torch.nn.Module):
    """Shares parameters, buffers, submodules, attributes and train/eval mode with the original.

    ``state_dict`` has the original's keys, optimizers see the original's parameters, and methods of the original that
    call the module call the compiled code. A copy or an unpickled one compiles for itself.
    """

    def __init__(self, original: torch.nn.Module, compile_function: CompileFunction) -> None:
        self.__dict__["_original"] = self.__dict__["_precast_original"] = original
        torch.nn.Module.__init__(self)
        for name in _SHARED:
            self.__dict__[name] = getattr(original, name)
        self.__dict__["_compile_function"] = compile_function
        self.__dict__["_compiled"] = compile_function(original)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.__dict__["_compiled"](*args, **kwargs)

    @property
    def training(self) -> bool:
        return self.original_module.training

    @training.setter
    def training(self, mode: bool) -> None:
        # The constructor of Module sets a default; the original's own mode is the one that counts.
        if "_compiled" in self.__dict__:
            self.original_module.training = mode

    @property
    def original_module(self) -> torch.nn.Module:
        """The module that this one was compiled from."""
        original: torch.nn.Module = self.__dict__["_original"]
        return original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training":
            object.__setattr__(self, name, value)
        else:
            setattr(self.original_module, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.original_module, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        return compile_module(copy.deepcopy(self.original_module, memo), self.__dict__["_compile_function"])

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_module, (self.original_module, self.__dict__["_compile_function"])


def compile_module(original: torch.nn.Module, compile_function: CompileFunction) -> CompiledModule:
    """A compiled module that is also an instance of the original's class, indexing and other operators included."""
    kind = type(original)
    compiled_kind = type(f"Compiled{kind.__name__}", (CompiledModule, kind), {"__module__": kind.__module__})
    made: CompiledModule = compiled_kind(original, compile_function)
    return made
