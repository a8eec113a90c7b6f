"""Lists library functions that do not depend only on a program and its inputs: clocks, files, random numbers, …"""

from types import FunctionType
from typing import Any

_MODULES = frozenset({
    "configparser", "ctypes", "datetime", "fileinput", "gc", "glob", "http", "importlib", "io", "linecache", "mmap",
    "multiprocessing", "pathlib", "pkgutil", "random", "runpy", "secrets", "select", "shelve", "shutil", "signal",
    "socket", "sqlite3", "subprocess", "tempfile", "time", "traceback", "urllib", "uuid",
})  # fmt: skip
_TORCH_MODULES = ("torch.distributed", "torch.multiprocessing", "torch.random", "torch.utils.data")
_FUNCTIONS = frozenset({
    ("inspect", "currentframe"), ("inspect", "stack"), ("inspect", "trace"),
    ("torch", "get_num_interop_threads"), ("torch", "get_num_threads"), ("torch", "get_rng_state"),
    ("torch", "initial_seed"), ("torch", "seed"),
    ("torch.cuda", "current_device"), ("torch.cuda", "device_count"), ("torch.cuda", "is_available"),
})  # fmt: skip
# In these modules, only these names are the same in every process of one Python installation.
_STEADY_PARTS = {
    "os": frozenset({"path", "fspath", "sep"}),
    "genericpath": frozenset({"commonprefix"}),
    "posixpath": frozenset({"basename", "commonpath", "dirname", "isabs", "join", "normpath", "split", "splitext"}),
    "sys": frozenset(
        {"byteorder", "float_info", "hexversion", "implementation", "maxsize", "platform", "version_info"}
    ),
}
_ENVIRONMENT = frozenset({("os", "_Environ"), ("os", "getenv")})
NONDETERMINISTIC_BUILTINS = frozenset(
    {"open", "input", "eval", "exec", "globals", "locals", "__import__", "breakpoint"}
)


def is_nondeterministic(module: str, name: str) -> bool:
    """Whether an attribute of a module may differ from process to process."""
    if module in _STEADY_PARTS:
        return name not in _STEADY_PARTS[module]
    is_listed = module.partition(".")[0] in _MODULES or (module, name) in _FUNCTIONS
    return is_listed or any(module == each or module.startswith(f"{each}.") for each in _TORCH_MODULES)


def is_nondeterministic_value(value: Any) -> bool:
    """The same for a function or class that was imported under any name."""
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
    if not callable(value) or not isinstance(module, str):
        return False
    return is_nondeterministic("os" if module == "posix" else module, name)


def reads_environment(value: Any) -> bool:
    """Whether this gives access to environment variables, which are compared."""
    named = value if isinstance(value, FunctionType) else type(value)
    return (named.__module__, named.__qualname__) in _ENVIRONMENT
