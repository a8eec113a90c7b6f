"""A module whose forward is compiled, and which is otherwise the original module."""

import copy
import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from precast.autograd.pieces import forward_of
from precast.trace.graph_breaks import has_hooks

CompileFunction = Callable[[Any], Callable[..., Any]]

_SHARED = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
_ABOUT_HOOKS = tuple(name for name in vars(torch.nn.Module()) if "hook" in name)
# Set by libraries that wrap the forward of a model: on the original, the wrapper would be compiled, and call itself.
_OWN = frozenset({"forward", "_original_forward"})


class CompiledModule(torch.nn.Module):
    """A compiled module. It shares parameters, buffers, submodules, attributes, hooks and mode with the original.

    ``state_dict`` has the original's keys, optimizers see the original's parameters, and methods of the original that
    call the module run the compiled code. Copied and unpickled modules are recompiled.
    """

    def __init__(self, original: torch.nn.Module, compile_function: CompileFunction) -> None:
        self.__dict__["_original"] = self.__dict__["_precast_original"] = original
        torch.nn.Module.__init__(self)
        for name in _SHARED:
            self.__dict__[name] = getattr(original, name)
        for name in _ABOUT_HOOKS:
            del self.__dict__[name]
        self.__dict__["_compile_function"] = compile_function
        self.__dict__["_compiled"] = compile_function(original)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        # A __call__ of the original's class is compiled with it, and must not run around it once more.
        return super().__call__(*args, **kwargs) if "forward" in self.__dict__ else self._call_impl(*args, **kwargs)

    def _call_impl(self, *args: Any, **kwargs: Any) -> Any:
        self.__dict__["_is_called"] = True
        if "forward" in self.__dict__:
            # A library has wrapped it: the hooks run around the wrapper.
            return super()._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        # The hooks are the original's, and are compiled with it.
        return self.__dict__["_compiled"](*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        own["_is_called"] = True
        if not has_hooks(self.original_module):
            return own["_compiled"](*args, **kwargs)
        if "_compiled_forward" not in own:
            own["_compiled_forward"] = own["_compile_function"](forward_of(self.original_module))
        return own["_compiled_forward"](*args, **kwargs)

    @property
    def training(self) -> bool:
        return self.original_module.training

    @training.setter
    def training(self, mode: bool) -> None:
        # The constructor of Module sets a default, which must not change the original's mode.
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
        elif name in _OWN:
            self.__dict__[name] = value
        else:
            setattr(self.original_module, name, value)

    def __delattr__(self, name: str) -> None:
        if name in _OWN and name in self.__dict__:
            del self.__dict__[name]
        else:
            delattr(self.original_module, name)

    def __deepcopy__(self, memo: dict[int, Any]) -> torch.nn.Module:
        return compile_module(copy.deepcopy(self.original_module, memo), self.__dict__["_compile_function"])

    def __reduce__(self) -> tuple[Any, ...]:
        return compile_module, (self.original_module, self.__dict__["_compile_function"])


def compile_module(original: torch.nn.Module, compile_function: CompileFunction) -> CompiledModule:
    """A compiled module that is also an instance of the original's class, indexing and other operators included.

    Its class has the original's name, which programs write into files, and its ``forward`` the original's signature.
    """
    kind = type(original)

    @functools.wraps(original.forward)
    def forward(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        return CompiledModule.forward(self, *args, **kwargs)

    # An unbound method, whose first parameter inspect leaves out of the signature.
    forward.__dict__["__wrapped__"] = getattr(original.forward, "__func__", lambda self, *args, **kwargs: None)
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "forward": forward}
    if callable(step := getattr(kind, "training_step", None)):
        names["training_step"] = _warning_if_uncompiled(step)
    compiled_kind = type(kind.__name__, (CompiledModule, kind), names)
    # Not by calling the class: GraphModule creates a new class for each instance.
    made: CompiledModule = object.__new__(compiled_kind)
    CompiledModule.__init__(made, original, compile_function)
    return made


def _warning_if_uncompiled(step: Callable[..., Any]) -> Callable[..., Any]:
    """A ``training_step`` that warns if it calls parts of the module, and not the compiled module itself."""

    @functools.wraps(step)
    def training_step(self: CompiledModule, *args: Any, **kwargs: Any) -> Any:
        result = step(self, *args, **kwargs)
        if not self.__dict__.get("_is_called"):
            self.__dict__["_is_called"] = True
            warnings.warn(
                f"{step.__name__} of {type(self).__name__} runs uncompiled: it calls parts of the module, and what is "
                "compiled is the module itself. Call self(x) in it, or compile the parts that it calls.",
                stacklevel=2,
            )
        return result

    return training_step
