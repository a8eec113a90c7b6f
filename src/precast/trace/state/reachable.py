"""Finds the Python state that a program can reach and read: the places, and their current values.

The walk follows attributes of modules and other objects, variables of modules and closures, defaults, class attributes,
and contents of containers. ``Reads`` says which names are relevant. Tensors are found, too, but they are inputs of a
program, not guarded state.
"""

import argparse
import builtins
import logging
import threading
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Callable, Collection, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from operator import eq
from types import CellType, FunctionType, MappingProxyType, ModuleType, SimpleNamespace
from typing import Any

import torch

from precast.options import environment_variables
from precast.trace.capture.module_state import module_names, root_modules
from precast.trace.capture.number_inputs import is_number
from precast.trace.exchanged_attributes import users_attributes
from precast.trace.executed_code import WATCHED_BUILTINS, is_machinery, is_trusted
from precast.trace.graph_breaks import ALL_HOOKS, FORWARD_HOOKS, global_hooks
from precast.trace.state.exchanged_containers import forms_in, is_exchangeable, parts_of, without_tensors
from precast.trace.state.objects import looks_up_by_itself, own_attributes, parts_of_constant
from precast.trace.state.places import Home, Item, Place, Sized, Watched, home_of
from precast.trace.state.reads import Reads, Variable, is_unnamed_method, unbound_in, variables_read
from precast.trace.state.torch_switches import switches_read

_ENABLING = ("enable_grad", "set_grad_enabled", "inference_mode")
_ABOUT_HOOKS = frozenset(name for name in vars(torch.nn.Module()) if "hook" in name)
_OWN_OF_MODULES = ("_parameters", "_buffers", "_modules")
# They do not affect what a program computes.
_MEANINGLESS = (
    logging.Logger, logging.LoggerAdapter, logging.Handler, logging.Manager, type(threading.Lock()),
    type(threading.RLock()),
)  # fmt: skip
_HOLDING_NOTHING = (
    *_MEANINGLESS, torch.Tensor, torch.Generator, type(None),
)  # fmt: skip
_OPEN_LIBRARY_CLASSES = (
    SimpleNamespace, argparse.Namespace, ChainMap, UserDict, UserList, threading.local, torch.optim.Optimizer,
    torch.optim.lr_scheduler.LRScheduler, torch.amp.GradScaler,
)  # fmt: skip
_CONTAINERS = (tuple, frozenset, list, deque, dict, MappingProxyType, set)
_BUFFERS = (bytearray, memoryview, array)
_BUILTINS = vars(builtins)
_VALUES = (str, bytes, int, float, complex)
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_UNSET = object()
_READS_ENVIRONMENT = "os _Environ.__getitem__"


@dataclass
class ReachableState:
    """Everything that was found. ``tensors`` are the places of each tensor by its identity, ``homes`` the first place
    of each container or object; ``absent`` are places of missing names, ``namespaces`` objects and their ``__dict__``;
    ``exchanged`` are containers that are replaced as a whole, without their tensors; ``kept`` keeps objects alive, so
    that identities stay valid.
    """

    places: list[Place] = field(default_factory=list)
    values: list[Any] = field(default_factory=list)
    sized: list[Sized] = field(default_factory=list)
    empty: list[tuple[str, Any]] = field(default_factory=list)
    absent: list[Place] = field(default_factory=list)
    objects: list[tuple[str, Any]] = field(default_factory=list)
    namespaces: list[tuple[str, Any, dict[str, Any]]] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    tensors: dict[int, list[Place]] = field(default_factory=dict)
    homes: dict[int, Place] = field(default_factory=dict)
    exchanged: list[tuple[Place, Any]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)


def reachable_state(
    function: Callable[..., Any] | None, reads: Reads, exchanged: Collection[Home] = ()
) -> ReachableState:
    """The state that ``function`` can reach now, limited to ``reads``.

    Containers in ``exchanged`` places are replaced between calls: their contents are found by path.
    """
    roots = {} if function is None else root_modules(function)
    names = module_names(roots)
    tree = {id(module): module for root in roots.values() for module in root.modules()}
    walk = _Walk(reads, {key: names[key] for key in tree}, exchanged)
    name = getattr(function, "__name__", type(function).__name__)
    if not reads.state_only:
        walk.prefix = type(function).__name__ if isinstance(function, torch.nn.Module) else name
    for module in tree.values():
        walk.visit(module, walk.module_path(module))
    walk.visit(function, walk.prefix)
    for namespace, module_name, variable in reads.variables:
        value = namespace[variable]
        if not _is_library(value):
            path = _variable_path(module_name, variable)
            walk.place(Place(path, namespace, variable, is_variable=True), value)
    walk.unbound(reads.unbound)
    walk.global_hooks()
    if reads.names is None or _READS_ENVIRONMENT in reads.functions:
        walk.found.watched.append(Watched("the environment", environment_variables))
    if not reads.state_only:
        walk.found.watched += [Watched(name, read) for name, read in switches_read(reads)]
    return walk.finish()


def _is_library(value: Any) -> bool:
    """Whether it is a library module, which is not replaced as a whole; changes inside it are found separately."""
    return isinstance(value, ModuleType) and (is_trusted(value.__name__) or is_machinery(value.__name__))


def hook_state(module: torch.nn.Module | None) -> ReachableState:
    """The hooks on all modules, and those of ``module``."""
    walk = _Walk(Reads.of_all_state(()), {})
    walk.global_hooks()
    if module is not None:
        walk.hooks_of(module)
    return walk.found


def join_path(path: str, name: Any) -> str:
    """The path of ``name`` below ``path``; the root's path is empty."""
    return f"{path}.{name}" if path else str(name)


def _variable_path(module: str, name: str) -> str:
    return f"the global {name} of {module}"


class _Walk:
    def __init__(self, reads: Reads, tree: dict[int, str], exchanged: Collection[Home] = ()) -> None:
        self._reads = reads
        self._tree = tree
        self._exchanged = exchanged
        self._wholes: list[Place] = []
        self._visited: set[int] = set()
        self._builtins: set[Home] = set()
        self._waiting: deque[tuple[Any, str]] = deque()
        self._name = ""
        # Without gradients, backward hooks are not called.
        has_gradients = torch.is_grad_enabled() or any(map(reads.may_read, _ENABLING))
        self._hook_kinds = ALL_HOOKS if has_gradients else FORWARD_HOOKS
        self.prefix = ""
        self.found = ReachableState()

    def module_path(self, module: torch.nn.Module) -> str:
        return ".".join(filter(None, (self.prefix, self._tree.get(id(module), ""))))

    def place(self, place: Place, value: Any) -> None:
        """Record a place and its value, and continue from the value."""
        if issubclass(type(value), _MEANINGLESS) and not self._reads.state_only:
            return
        if home_of(place) in self._exchanged and is_exchangeable(value):
            self._wholes.append(place)
            self._by_path(place, value)
            return
        self._note(place, value)
        name = self._name if place.is_attribute and place.key == "cell_contents" else place.key
        if not (type(value) is list and self._reads.only_appends_to(name)):
            self.visit(value, place.path, place)

    def _note(self, place: Place, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            self.found.tensors.setdefault(id(value), []).append(place)
            self._of_tensor(place, value)
        self.found.places.append(place)
        self.found.values.append(value)

    def _of_tensor(self, place: Place, tensor: torch.Tensor) -> None:
        """Record attributes set on a tensor, relative to its place: another tensor may replace it."""
        for name, value in own_attributes(tensor).items() if type(tensor) in _PLAIN_TENSORS else ():
            if self._reads.may_read(name) and not isinstance(value, torch.Tensor):
                item = Item.of(place, name, tensor, is_attribute=True)
                self.found.places.append(item)
                self.found.values.append(value)
                self.visit(value, item.path, item)

    def visit(self, value: Any, path: str, home: Place | None = None) -> None:
        """Schedule a value, whose contents are to be recorded."""
        kind = type(value)
        if id(value) not in self._visited and not issubclass(kind, _HOLDING_NOTHING) and kind not in _VALUES:
            self._visited.add(id(value))
            self.found.kept.append(value)
            if home is not None:
                self.found.homes[id(value)] = home
            self._waiting.append((value, path))

    def _by_path(self, whole: Place, value: Any) -> None:
        """Record the tensors and numbers in a container that is replaced as a whole."""
        if id(value) in self._visited:
            return
        self._visited.add(id(value))
        self.found.homes[id(value)] = whole
        parts = parts_of(value)
        assert parts is not None, "a container has parts"
        for key, part in parts.items.items():
            item = Item.of(whole, key, value, is_attribute=parts.are_attributes)
            if isinstance(part, torch.Tensor) or is_number(part):
                self._note(item, part)
            elif is_exchangeable(part):
                self._by_path(item, part)
            else:
                self.visit(part, item.path, item)

    def unbound(self, variables: Iterable[Variable]) -> None:
        """Record globals that are unbound, and the builtins that are used instead."""
        for namespace, module, name in variables:
            self.found.absent.append(Place(_variable_path(module, name), namespace, name))
            if name in _BUILTINS and name not in WATCHED_BUILTINS:
                place = Place(f"the builtin {name}", _BUILTINS, name)
                if home_of(place) not in self._builtins:
                    self._builtins.add(home_of(place))
                    self.place(place, _BUILTINS[name])

    def global_hooks(self) -> None:
        """Record the hooks on all modules."""
        for name in ALL_HOOKS:
            self._hooks(global_hooks(name), "the hooks of all modules")

    def hooks_of(self, module: torch.nn.Module) -> None:
        """Record the hooks of one module."""
        for name in ALL_HOOKS:
            self._hooks(vars(module)[name], join_path(type(module).__name__, name))

    def _hooks(self, held: dict[int, Any], path: str) -> None:
        if held:
            self._items(held, list(held.items()), path)
        else:
            self.found.empty.append((path, held))

    def finish(self) -> ReachableState:
        """Process everything scheduled: not recursively, since chains of objects may be long."""
        while self._waiting:
            self._follow(*self._waiting.popleft())
        if self._wholes:
            paths = ", ".join(place.path for place in self._wholes)
            self.found.watched.append(Watched(paths, partial(forms_in, self._wholes)))
            made: dict[int, Any] = {}
            self.found.exchanged = [(place, without_tensors(place.read(), made)) for place in self._wholes]
        return self.found

    def _follow(self, value: Any, path: str) -> None:
        original = own_attributes(value).get("_precast_original")
        if original is not None:
            self.visit(original, path)
            self._wrapped_forward(value, path)
        elif isinstance(value, torch.nn.Module):
            self._module(value, path)
        elif isinstance(value, type):
            self._class(value, path)
        elif isinstance(value, FunctionType):
            self._function(value, path)
        elif isinstance(value, ModuleType):
            self._python_module(value)
        elif isinstance(value, threading.local):
            self._of_this_thread(value, path)
        elif isinstance(value, _CONTAINERS):
            self._container(value, path)
        elif (held := parts_of_constant(value)) is not None:
            for part in held:
                self.visit(part, path)
        else:
            self._object(value, path)

    def _container(self, value: Any, path: str) -> None:
        if isinstance(value, (tuple, frozenset)):
            self._each(enumerate(value), path)
        elif isinstance(value, (list, deque)):
            self._items(value, enumerate(value), path)
        elif isinstance(value, set):
            self.found.watched.append(Watched(path, partial(frozenset, value), value))
        else:
            self._dict(value, path)
        if not is_trusted(type(value).__module__):
            self.visit(type(value), type(value).__name__)
        self._own_attributes(value, path)

    def _module(self, module: torch.nn.Module, path: str) -> None:
        held, is_in_tree = vars(module), id(module) in self._tree
        self.found.objects.append((path, module))
        self.visit(type(module), type(module).__name__)
        may_read = self._reads.of_objects(type(module))
        self.found.sized.append(Sized(path, held, may_read, is_module=True))
        if not is_in_tree:
            self.found.namespaces.append((path, module, held))
        has_hooks = any(held.get(name) for name in ALL_HOOKS)
        if not has_hooks:
            self.found.empty += [(join_path(path, name), held[name]) for name in self._hook_kinds if name in held]
        known = {"training"} if is_in_tree else set()
        known |= set() if has_hooks or self._reads.state_only else _ABOUT_HOOKS
        for name, value in users_attributes(held).items():
            if name in _OWN_OF_MODULES:
                self._own_of_module(value, path, is_in_tree=is_in_tree)
            elif may_read(name) and name not in known:
                self.place(Place(join_path(path, name), held, name), value)

    def _wrapped_forward(self, compiled: Any, path: str) -> None:
        """Record a wrapper around the forward of a compiled module; everything else is the original's."""
        if isinstance(compiled, torch.nn.Module):
            held = vars(compiled)
            self.found.sized.append(Sized(path, held, partial(eq, "forward")))
            if "forward" in held:
                self.place(Place(join_path(path, "forward"), held, "forward"), held["forward"])

    def _python_module(self, module: ModuleType) -> None:
        """Record the variables of a user's module that is kept in an attribute or a closure."""
        name = module.__name__
        if not (self._reads.state_only or is_trusted(name) or is_machinery(name)):
            self._named_items(vars(module), name, self._reads.may_read)

    def _of_this_thread(self, local: threading.local, path: str) -> None:
        """Record the attributes of a thread-local object: the thread that checks them sees its own."""
        self.found.watched.append(Watched(path, lambda: frozenset(filter(self._reads.may_read, vars(local)))))
        for name, value in vars(local).items():
            if self._reads.may_read(name):
                self.place(Place(join_path(path, name), local, name, is_attribute=True), value)

    def _own_of_module(self, held: dict[str, Any], path: str, *, is_in_tree: bool) -> None:
        """Record parameters, buffers and submodules; those in the tree are inputs, and covered by the guard key."""
        if not is_in_tree:
            self.found.sized.append(Sized(path, held, _always))
        for name, value in held.items():
            place = Place(join_path(path, name), held, name)
            if not is_in_tree:
                self.place(place, value)
            elif isinstance(value, torch.Tensor):
                self.found.tensors.setdefault(id(value), []).append(place)
                self._of_tensor(place, value)

    def _class(self, kind: type, path: str) -> None:
        if not is_trusted(type(kind).__module__):
            self.visit(type(kind), type(kind).__name__)
        for base in kind.__mro__:
            if id(base) in self._visited and base is not kind:
                continue
            self._visited.add(id(base))
            trusted = is_trusted(base.__module__)
            if trusted and not issubclass(base, torch.nn.Module):
                continue
            held = vars(base)
            if not trusted:
                self.found.sized.append(Sized(base.__qualname__, held, self._reads.may_read_of_class, base))
                self._note(
                    Place(f"{base.__qualname__}.__bases__", base, "__bases__", is_attribute=True), base.__bases__
                )
            for name, value in held.items():
                if self._counts_in_class(name, value) and (not trusted or name == "forward"):
                    self.place(Place(f"{base.__qualname__}.{name}", held, name, owner=base), value)

    def _counts_in_class(self, name: str, value: Any) -> bool:
        if not self._reads.may_read_of_class(name):
            return False
        is_named = self._reads.may_read(name)
        function = value if is_named else getattr(value, "__func__", getattr(value, "fget", value))
        if isinstance(function, FunctionType):
            # Of code, only the variables around it are state.
            return _closes_over_state(function) if self._reads.state_only else self._reads.runs(function)
        return is_named or (is_unnamed_method(name) and callable(value))

    def _function(self, function: FunctionType, path: str) -> None:
        if not self._reads.runs(function):
            return
        trusted = is_trusted(function.__module__)
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            if name != "__class__" and _is_bound(cell):
                self._name = name
                place = Place(f"the variable {name} of {function.__name__}", cell, "cell_contents", is_attribute=True)
                self.place(place, cell.cell_contents)
        if trusted:
            return
        for name in ("__defaults__", "__kwdefaults__"):
            if (value := getattr(function, name)) is not None:
                self.place(Place(f"the defaults of {function.__name__}", function, name, is_attribute=True), value)
        if not self._reads.state_only:
            # Replaced by tools that reload code while a program runs.
            place = Place(f"the code of {function.__name__}", function, "__code__", is_attribute=True)
            self.place(place, function.__code__)
        self._named_items(vars(function), path, self._reads.may_read)
        if self._reads.names is None and not self._reads.state_only:
            for namespace, module, name in variables_read(function.__code__, function.__globals__, function.__module__):
                if not _is_library(namespace[name]):
                    self.place(Place(_variable_path(module, name), namespace, name), namespace[name])
            self.unbound(unbound_in(function.__code__, function.__globals__, function.__module__))

    def _dict(self, value: Any, path: str) -> None:
        if type(value).__getitem__ in (dict.__getitem__, MappingProxyType.__getitem__):
            self._items(value, list(value.items()), path)
        else:
            self.found.watched.append(Watched(path, lambda: list(dict.items(value))))
            self._each(list(dict.items(value)), path)

    def _items(self, holder: Any, items: Iterable[tuple[Any, Any]], path: str) -> None:
        home = self.found.homes.get(id(holder))
        self.found.sized.append(Sized(path, holder, _always, home=home, has_order=isinstance(holder, dict)))
        for key, value in items:
            self.place(Place(f"{path}[{_key_in_words(key)}]", holder, key), value)

    def _each(self, items: Iterable[tuple[Any, Any]], path: str) -> None:
        for key, value in items:
            self.visit(value, f"{path}[{_key_in_words(key)}]")

    def _object(self, value: Any, path: str) -> None:
        kind = type(value)
        if isinstance(value, ContextVar):
            self.found.watched.append(Watched(path, lambda: value.get(None)))
            self.visit(value.get(None), path)
            return
        if kind.__module__ == "numpy" and hasattr(value, "tobytes"):
            self.found.watched.append(Watched(path, lambda: (value.shape, str(value.dtype), value.tobytes())))
            return
        if is_machinery(kind.__module__):
            return
        if isinstance(value, _BUFFERS):
            self.found.watched.append(Watched(path, lambda: bytes(value)))
            return
        if self._is_closed(kind):
            return
        self.found.objects.append((path, value))
        self.visit(kind, kind.__name__)
        self._own_attributes(value, path)

    def _is_closed(self, kind: type) -> bool:
        """Whether objects of a class are not followed: torch's, ours, builtins; if only state counts, any library's."""
        if issubclass(kind, _OPEN_LIBRARY_CLASSES) or not is_trusted(kind.__module__):
            return False
        return self._reads.state_only or kind.__module__.partition(".")[0] in ("builtins", "precast", "torch")

    def _own_attributes(self, value: Any, path: str) -> None:
        kind = type(value)
        held, may_read = own_attributes(value), self._reads.of_objects(kind)
        if isinstance(held, dict):
            self.found.namespaces.append((path, value, held))
            home = self.found.homes.get(id(value))
            self._named_items(held, path, _always if looks_up_by_itself(kind) else may_read, home)
        for base in kind.__mro__:
            slots = () if is_trusted(base.__module__) else vars(base).get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if may_read(name) and name not in ("__dict__", "__weakref__"):
                    self._slot(value, name, path)

    def _slot(self, value: Any, name: str, path: str) -> None:
        if hasattr(value, name):
            self.place(Place(join_path(path, name), value, name, is_attribute=True), getattr(value, name))
        else:
            self.found.watched.append(Watched(join_path(path, name), partial(getattr, value, name, _UNSET)))

    def _named_items(
        self, held: dict[str, Any], path: str, may_read: Callable[[Any], bool], home: Place | None = None
    ) -> None:
        self.found.sized.append(Sized(path, held, may_read, home=home))
        for name, value in held.items():
            if may_read(name):
                self.place(Place(join_path(path, name), held, name), value)


def _key_in_words(key: Any) -> str:
    """A key as text; the ``repr`` of a tensor would list all its elements."""
    return f"a tensor of sizes {list(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)


def _always(_: Any) -> bool:
    return True


def _closes_over_state(function: FunctionType) -> bool:
    return any(name != "__class__" for name in function.__code__.co_freevars)


def _is_bound(cell: CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False
