"""Hashes Python objects by everything that code could distinguish, following all references.

Values are hashed by value, functions by their code, classes by their bodies, other objects by their class and
attributes. Whatever hides its contents (open files, iterators, weak references, …) raises Indescribable: what cannot
be compared must not count as equal.
"""

import abc
import collections
import enum
import functools
import hashlib
import inspect
import logging
import operator
import re
import sys
import threading
import types
import typing
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from precast.autograd.warm.code_identity import code_digest
from precast.autograd.warm.nondeterministic import is_nondeterministic_value
from precast.cache import Indescribable
from precast.trace.exchanged_attributes import users_attributes
from precast.trace.executed_code import is_trusted
from precast.trace.state.reads import IGNORED_IN_CLASSES

_PLAIN = frozenset({type(None), bool, int, str, bytes, complex, type(...), type(NotImplemented)})
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size, re.Pattern)
_PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
_LISTS = (list, tuple, collections.deque)
_DICTS = (dict, types.MappingProxyType)
_BUILTINS = (
    types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType, types.MethodDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
)  # fmt: skip
# Locks and loggers do not affect what a program computes.
_WITHOUT_MEANING = (type(threading.Lock()), type(threading.RLock()), logging.Logger, logging.LoggerAdapter)
_MOST_WORDS = 200_000
_DEEPEST = 100
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@contextmanager
def refusing_unruly() -> Iterator[None]:
    """While active, errors from an object's own code (properties, ``__repr__``) become Indescribable."""
    try:
        yield
    except (
        ArithmeticError,
        AttributeError,
        ImportError,
        LookupError,
        ReferenceError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as e:
        raise Indescribable(f"an object that cannot be inspected: {type(e).__name__}: {e}") from e


class Description:
    """A hash of all objects added, in order; repeated objects are hashed as a number."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()
        self._words: list[str] = []
        self._numbers: dict[int, int] = {}
        # Kept alive, so that ids are not reused.
        self._kept: list[object] = []
        self._memories: dict[int, int] = {}
        self._rules: dict[type, _Rule] = {}
        self._depth, self._room = 0, _MOST_WORDS
        self.functions: dict[int, types.FunctionType] = {}
        """Every function that was described with its defaults and closure; of others, only the code was."""
        self.opaque: set[str] = set()
        """Names of attributes that could not be compared."""
        self.reads_caches = False
        """Whether there is a function with a cache, whose result may be from an earlier environment."""

    def copy(self) -> "Description":
        """An independent copy."""
        self._hash_words()
        made = Description()
        made._digest, made._numbers, made._kept = self._digest.copy(), dict(self._numbers), list(self._kept)
        made._memories = dict(self._memories)
        made._room, made.functions, made.opaque = self._room, dict(self.functions), set(self.opaque)
        made.reads_caches = self.reads_caches
        return made

    def hexdigest(self) -> str:
        self._hash_words()
        return self._digest.hexdigest()

    def _hash_words(self) -> None:
        # In one batch: hashing word by word would take as long as everything else.
        self._digest.update("".join(self._words).encode(errors="surrogatepass"))
        self._room -= len(self._words)
        self._words.clear()

    def word(self, text: str) -> None:
        """Add a text."""
        self._words.append(f"{len(text)}:{text}")
        if len(self._words) > self._room:
            raise Indescribable("more objects than are worth comparing")

    def add(self, value: Any) -> None:
        """Add an object and all that it refers to."""
        kind = type(value)
        if kind in _PLAIN:
            self.word(f"{kind.__name__} {value!r}")
        elif kind is float:
            self.word(f"float {value.hex()}")
        elif kind is type or issubclass(kind, type):
            self._class(value)
        elif kind is types.FunctionType:
            self._once(value, self._function)
        elif isinstance(value, torch.Tensor):
            self.add_tensor(value, value.shape, value.stride())
        elif isinstance(value, _NAMED):
            self.word(f"{kind.__name__} {value}")
        elif isinstance(value, types.ModuleType):
            self.word(f"module {value.__name__} {getattr(value, '__version__', '')}")
        else:
            self._once(value, self._object)

    def add_tensor(self, tensor: torch.Tensor, shape: Iterable[int | str], strides: Any) -> None:
        """Add a tensor, which is an input of programs: its metadata and aliasing, not its elements.

        A name in the ``shape`` stands for any size; ``strides`` is its strides or its memory order.
        """
        self._once(tensor, lambda tensor: self._tensor(tensor, tuple(shape), strides))

    def _tensor(self, tensor: torch.Tensor, shape: tuple[int | str, ...], strides: Any) -> None:
        if type(tensor) not in _PLAIN_TENSORS or tensor.layout is not torch.strided or tensor.is_quantized:
            raise Indescribable(f"a tensor of type {type(tensor).__name__}")
        standing = (tensor.requires_grad, tensor.is_leaf, tensor.is_conj(), tensor.is_neg(), tensor.is_inference())
        memory = self._memories.setdefault(tensor.untyped_storage()._cdata, len(self._memories))
        self.word(
            f"{type(tensor).__name__} {tensor.dtype} {tensor.device} {shape} {strides} {tensor.storage_offset()} "
            f"{standing} {memory}"
        )
        if vars(tensor):
            self.attributes(tensor)

    def add_all(self, values: Iterable[Any]) -> None:
        """Add objects in order, and their number."""
        listed = list(values)
        self.word(str(len(listed)))
        for value in listed:
            self.add(value)

    def attributes(self, value: Any) -> None:
        """Add the attributes in an object's ``__dict__``, by name."""
        held = vars(value)
        for name in sorted(held):
            if _is_kept_hash(name, held[name]):
                self.word(f".{name}")
                self.opaque.add(name)
            else:
                self._attribute(name, held[name])

    def _attribute(self, name: str, value: Any) -> None:
        kind = type(value)
        if kind in _PLAIN:
            # The common case.
            self.word(f".{name} {kind.__name__} {value!r}")
        else:
            self.word(f".{name}")
            self.add(value)

    def _once(self, value: Any, describe: Callable[[Any], None]) -> None:
        known = self._numbers.get(id(value))
        if known is not None:
            self.word(f"again {known}")
            return
        self._numbers[id(value)] = len(self._kept)
        self._kept.append(value)
        if self._depth > _DEEPEST:
            raise Indescribable("objects that are nested too deeply")
        self._depth += 1
        try:
            describe(value)
        finally:
            self._depth -= 1

    def _function(self, function: types.FunctionType) -> None:
        self.word(f"function {function.__module__} {function.__qualname__}")
        self.word(code_digest(function.__code__).hex())
        self.functions[id(function)] = function
        if is_trusted(function.__module__):
            _refuse_nondeterministic(function)
            return
        self.add(function.__defaults__)
        self.add(function.__kwdefaults__)
        self.add_all(map(_contents, function.__closure__ or ()))
        wrapped = vars(function).get("__wrapped__")
        if wrapped is not None:
            self.add(wrapped)

    def _class(self, kind: type) -> None:
        known = self._numbers.get(id(kind))
        if known is not None:
            self.word(f"class {known}")
            return
        self.word(f"class {kind.__module__} {kind.__qualname__}")
        if isinstance(kind, abc.ABCMeta):
            self.word(" ".join(sorted(_registered_with(kind))))
        if kind.__flags__ & _HEAP_TYPE and kind.__module__.partition(".")[0] not in sys.stdlib_module_names:
            self._once(kind, self._class_body)

    def _class_body(self, kind: type) -> None:
        for base in kind.__bases__:
            self._class(base)
        if type(kind) is not type:
            self._class(type(kind))
        # Of trusted classes, only functions, which may have been patched.
        included = _CODE if is_trusted(kind.__module__) else object
        for name, value in sorted(vars(kind).items()):
            if name not in IGNORED_IN_CLASSES and isinstance(value, included):
                self.word(f".{name}")
                self._member(name, value)

    def _member(self, name: str, value: Any) -> None:
        """Add one attribute of a class; functions at least by their code, since most of them are never called."""
        if isinstance(value, staticmethod | classmethod):
            self.word(type(value).__name__)
            self._member(name, value.__func__)
        elif isinstance(value, property):
            self.word("property")
            for function in (value.fget, value.fset, value.fdel):
                self._member(name, function)
        elif isinstance(value, types.FunctionType):
            self._once(value, self._method_function)
        elif not self._tried(value):
            self.word(f"opaque {type(value).__name__}")
            self.opaque.add(name)

    def _method_function(self, function: types.FunctionType) -> None:
        """Add a function's code, and its defaults and closure if they can be described."""
        self.word(f"function {function.__module__} {function.__qualname__}")
        self.word(code_digest(function.__code__).hex())
        held = (function.__defaults__, function.__kwdefaults__, *map(_contents, function.__closure__ or ()))
        if is_trusted(function.__module__) or self._tried(held):
            self.functions[id(function)] = function
        else:
            self.word("opaque function")

    def _tried(self, value: Any) -> bool:
        """Add an object if it can be described; returns whether it could."""
        start = len(self._kept)
        try:
            self.add(value)
        except Indescribable:
            # Partially described objects must not count as known.
            for forgotten in self._kept[start:]:
                del self._numbers[id(forgotten)]
                self.functions.pop(id(forgotten), None)
            del self._kept[start:]
            return False
        return True

    def _object(self, value: Any) -> None:
        kind = type(value)
        describe = self._rules.get(kind)
        if describe is None:
            describe = self._rules[kind] = _rule_for(kind)
        describe(self, value)

    def _list(self, value: Any) -> None:
        self._class(type(value))
        self.add_all(value)
        self._own_attributes(value)

    def _set(self, value: Any) -> None:
        self._class(type(value))
        self.word(" ".join(sorted(map(_plain_text, value))))

    def _dict(self, value: Any) -> None:
        self._class(type(value))
        if isinstance(value, collections.defaultdict):
            self.add(value.default_factory)
        if set(map(type, value)) == {str}:
            self.word(repr(list(value)))
        else:
            self.add_all(value.keys())
        self.add_all(value.values())
        self._own_attributes(value)

    def _enum(self, value: enum.Enum) -> None:
        self._class(type(value))
        self.word(value.name)

    def _builtin(self, value: Any) -> None:
        _refuse_nondeterministic(value)
        owner = getattr(value, "__objclass__", None)
        self.word(f"builtin {value.__name__} {getattr(value, '__module__', '')} {owner}")
        bound_to = getattr(value, "__self__", None)
        if bound_to is not None and not isinstance(bound_to, types.ModuleType):
            self.add(bound_to)

    def _method(self, value: types.MethodType) -> None:
        self.word("method")
        self.add(value.__func__)
        self.add(value.__self__)

    def _wrapper(self, value: Any) -> None:
        self.word(type(value).__name__)
        self.add(value.__func__)

    def _property(self, value: property) -> None:
        self.word("property")
        self.add_all((value.fget, value.fset, value.fdel))

    def _cached_property(self, value: Any) -> None:
        self.word("cached property")
        self.add(value.func)

    def _partial(self, value: Any) -> None:
        self.word("partial")
        self.add_all((value.func, value.args, value.keywords))

    def _cached_function(self, value: Any) -> None:
        self.reads_caches = True
        self.word("cached")
        self.add(value.__wrapped__)

    def _context_variable(self, value: "ContextVar[Any]") -> None:
        self.word(f"context variable {value.name}")
        self.add(value.get(None))

    def _meaningless(self, value: Any) -> None:
        self.word(type(value).__name__)

    def _text(self, value: Any) -> None:
        """Add an object by its ``repr``, which must be complete and contain no address."""
        self._class(type(value))
        text = repr(value)
        if _ADDRESS.search(text):
            raise Indescribable(f"an object of type {type(value).__name__}")
        self.word(text)

    def _module_instance(self, module: torch.nn.Module) -> None:
        self._class(type(module))
        hooks = [name for name in _HOOKS if vars(module).get(name)]
        if hooks:
            raise Indescribable(f"a module with hooks ({min(hooks)})")
        self.word(" ".join(f"{name}{tensor is None}" for name, tensor in module._parameters.items()))
        self.word(" ".join(f"{name}{tensor is None}" for name, tensor in module._buffers.items()))
        for tensor in (*module._parameters.values(), *module._buffers.values()):
            if tensor is not None:
                self.add(tensor)
        for name, value in users_attributes(vars(module)).items():
            if name not in _HOOKS and name not in _TENSORS:
                self._attribute(name, value)

    def _instance(self, value: Any) -> None:
        kind = type(value)
        if _layout_base(kind) is not object:
            raise Indescribable(f"an object of type {kind.__module__}.{kind.__qualname__}")
        self._class(kind)
        self._own_attributes(value)
        for base in kind.__mro__:
            slots = base.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if name not in ("__dict__", "__weakref__"):
                    self.word(f".{name}")
                    self.add(getattr(value, name, None))

    def _own_attributes(self, value: Any) -> None:
        if hasattr(value, "__dict__"):
            self.attributes(value)


def _refuse_nondeterministic(function: Any) -> None:
    if is_nondeterministic_value(function):
        raise Indescribable(f"the function {function.__module__}.{function.__name__}")


def _is_kept_hash(name: str, value: object) -> bool:
    """Whether an attribute is a cached hash, which differs between processes for the same object."""
    return name.endswith("hash") and type(value) is int and abs(value) >= 2**32


def _contents(cell: types.CellType) -> object:
    """The value of a closure variable; None if it is unbound."""
    try:
        found: object = cell.cell_contents
    except ValueError:
        return None
    return found


def _plain_text(value: object) -> str:
    """The text of a set's element, which identifies it."""
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if isinstance(value, tuple):
        return f"({', '.join(map(_plain_text, value))})"
    if type(value) not in _PLAIN and not isinstance(value, _NAMED):
        raise Indescribable(f"a set of {type(value).__name__}")
    return repr(value)


def _registered_with(kind: abc.ABCMeta) -> Iterator[str]:
    """The classes that are registered as virtual subclasses of an abstract class."""
    for reference in abc._get_dump(kind)[0]:  # type: ignore[attr-defined]
        registered = reference()
        if registered is not None and not is_trusted(registered.__module__):
            yield f"{registered.__module__}.{registered.__qualname__}"


def _layout_base(kind: type) -> type:
    """The first base class that is written in C: it may have contents that attributes do not show."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE or _is_written_in_c(base))


def _is_written_in_c(kind: type) -> bool:
    """Whether a heap type has methods in C, and so may have hidden contents."""
    return any(type(value) in _OF_C and value.__objclass__ is kind for value in vars(kind).values())


_OF_C = (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType)


def _rule_for(kind: type) -> "_Rule":
    """The rule by which objects of a class are described."""
    return _RULES.get(kind) or next(
        (rule for kinds, rule in _SUBCLASS_RULES if issubclass(kind, kinds)), Description._instance
    )


_HEAP_TYPE = 1 << 9
_CODE = (types.FunctionType, staticmethod, classmethod, property)
_EMPTY = torch.nn.Module()
_TENSORS = ("_parameters", "_buffers")
_HOOKS = frozenset(name for name in vars(_EMPTY) if "hook" in name and isinstance(vars(_EMPTY)[name], dict))

_Rule = Callable[[Description, Any], None]
_RULES: dict[type, _Rule] = {
    types.MethodType: Description._method,
    staticmethod: Description._wrapper,
    classmethod: Description._wrapper,
    property: Description._property,
    functools.cached_property: Description._cached_property,
    functools.partial: Description._partial,
    functools._lru_cache_wrapper: Description._cached_function,
    ContextVar: Description._context_variable,
    threading.local: Description.attributes,
    types.SimpleNamespace: Description.attributes,
    array: Description._text,
    range: Description._text,
    slice: Description._text,
    types.GenericAlias: Description._text,
    types.UnionType: Description._text,
    operator.attrgetter: Description._text,
    operator.itemgetter: Description._text,
    inspect.Signature: Description._text,
}
_SUBCLASS_RULES: tuple[tuple[tuple[type, ...], _Rule], ...] = (
    ((torch.nn.Module,), Description._module_instance),
    (_WITHOUT_MEANING, Description._meaningless),
    ((enum.Enum,), Description._enum),
    (_DICTS, Description._dict),
    (_LISTS, Description._list),
    ((set, frozenset), Description._set),
    (_BUILTINS, Description._builtin),
    ((typing._Final, typing.TypeVar), Description._text),
    ((torch._ops.OpOverload, torch._ops.OpOverloadPacket), Description._text),
)
