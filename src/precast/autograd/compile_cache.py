"""Caches the results of compilers on disk, for compilers with a ``cache_key``; see ``precast.backend.Compiler``.

The key is made from a canonical text of the graph, without names or addresses, equal for equivalent graphs:

Before: ``mul_3 = aten.mul.Tensor(primals_1, sin_2)`` with sizes ``[s77, 4]``
After:  ``%5 = aten.mul.Tensor((%0, %3), {}) -> torch.float32 [n0, 4] …``
"""

import hashlib
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor

from precast._version import __version__
from precast.autograd.guards.sizes import SizeNames, Symbolic
from precast.backend import CompiledFunction, Compiler
from precast.cache import Indescribable, content_key, open_store, processor_identity
from precast.cache.folder import warn_of_cache
from precast.errors import InputTypeError, PrecastError
from precast.graph.compilation import compiling
from precast.graph.float32_precision import float32_precision
from precast.graph.nodes import has_value, placeholders_of, updating_result_of, value_of
from precast.options import Options, as_options, key_text

_PLAIN = (type(None), bool, int, float, complex, str)
_NAMED = (torch.dtype, torch.device, torch.layout, torch.memory_format)
_TENSOR_KINDS = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_TORCH_NAMESPACES = ("aten", "prim", "prims")
# Functions that are identified by their name.
_KNOWN_MODULES = ("_operator", "builtins", "math", "torch")
# Those that refer to nothing outside of the graph: others have indices into tables of one process.
_KNOWN_HIGHER_ORDER = frozenset(
    {
        "associative_scan",
        "auto_functionalized",
        "auto_functionalized_v2",
        "cond",
        "invoke_subgraph",
        "map_impl",
        "run_and_save_rng_state",
        "run_with_rng_state",
        "scan",
        "while_loop",
        "with_effects",
    }
)


def graph_text(module: fx.GraphModule, examples: Sequence[object], sizes: SizeNames) -> str:
    """The canonical text of the graph over inputs like ``examples``; raises Indescribable if there is none."""
    sizes.meet(size for example in examples for size in _sizes_of(example))
    return "\n".join(_lines(module, examples, sizes))


def _lines(module: fx.GraphModule, examples: Sequence[object] | None, sizes: SizeNames) -> Iterator[str]:
    numbers = {node: f"%{number}" for number, node in enumerate(module.graph.nodes)}
    known = dict(zip(placeholders_of(module.graph), examples, strict=True)) if examples is not None else {}
    words = _Words(numbers, sizes)
    for node in module.graph.nodes:
        value = known[node] if node in known else value_of(node) if has_value(node) else None
        yield f"{numbers[node]} = {_operation(node, module, words)} -> {words.of(value)}"


def _operation(node: fx.Node, module: fx.GraphModule, words: "_Words") -> str:
    if node.op == "placeholder":
        result = updating_result_of(node)
        return "input" if result is None else f"input, updated by result {result}"
    if node.op == "output":
        return f"output {words.of(node.args)}"
    if node.op == "get_attr":
        return _attribute(attrgetter(str(node.target))(module), words)
    if node.op == "call_function":
        return f"{words.of(node.target)}({words.of(node.args)}, {words.of(node.kwargs)})"
    raise Indescribable(f"a node of kind {node.op}")


def _attribute(value: object, words: "_Words") -> str:
    if isinstance(value, fx.GraphModule):
        inner = "\n".join(_lines(value, None, words.sizes))
        return f"graph {{\n{inner}\n}}"
    if isinstance(value, torch.Tensor):
        return f"constant {words.of(value)} {_contents(value)}"
    raise Indescribable(f"an attribute of type {type(value).__name__}")


def _contents(tensor: torch.Tensor) -> str:
    """A hash of a tensor's elements in order."""
    if isinstance(tensor, FakeTensor):
        raise Indescribable("a constant without data")
    elements = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.sha256(elements.numpy().tobytes()).hexdigest()


def _sizes_of(value: object) -> Sequence[object]:
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        return (*value.shape, *value.stride())
    return (value,)


class _Words:
    """Values of one graph as text."""

    def __init__(self, numbers: dict[fx.Node, str], sizes: SizeNames) -> None:
        self._numbers = numbers
        self.sizes = sizes

    def of(self, value: object) -> str:
        if isinstance(value, fx.Node):
            return self._numbers[value]
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if isinstance(value, Symbolic):
            return f"{type(value).__name__} {self.sizes.text(value)}"
        if isinstance(value, _NAMED):
            return str(value)
        if isinstance(value, tuple | list):
            brackets = "()" if isinstance(value, tuple) else "[]"
            return f"{brackets[0]}{', '.join(map(self.of, value))}{brackets[1]}"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.of(key)}: {self.of(item)}' for key, item in value.items())}}}"
        if isinstance(value, slice):
            return f"slice{self.of((value.start, value.stop, value.step))}"
        return _function(value)

    def _tensor(self, tensor: torch.Tensor) -> str:
        is_plain = tensor.layout is torch.strided and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
        if type(tensor) not in _TENSOR_KINDS or not is_plain:
            raise Indescribable(f"a tensor of kind {type(tensor).__name__}, {tensor.layout}")
        shape, strides = (", ".join(map(self.sizes.text, numbers)) for numbers in (tensor.shape, tensor.stride()))
        offset = self.sizes.text(tensor.storage_offset())
        flags = f"{tensor.requires_grad} {isinstance(tensor, torch.nn.Parameter)}"
        return f"{tensor.dtype} [{shape}] [{strides}] {offset} {tensor.device} {flags}"


def _function(value: object) -> str:
    if isinstance(value, torch._ops.OpOverload):
        return str(value) if value.namespace in _TORCH_NAMESPACES else f"{value} {value._schema}"
    if isinstance(value, torch._ops.HigherOrderOperator):
        if value.name() not in _KNOWN_HIGHER_ORDER:
            raise Indescribable(f"the operator {value.name()}")
        return f"higher order {value.name()}"
    module, name = getattr(value, "__module__", None) or "", getattr(value, "__qualname__", "<nameless>")
    if module.partition(".")[0] not in _KNOWN_MODULES or "<" in name:
        raise Indescribable(f"{name}, of type {type(value).__name__}")
    return f"{module}.{name}"


Finish = Callable[[], CompiledFunction]

KIND = "graphs"

_log = logging.getLogger("precast.autograd")


def start_graph(compiler: Compiler, module: fx.GraphModule, name: str) -> Finish:
    """Start to compile one graph, or find it in the cache, with its placeholders' fake values as examples.

    Returns a function that waits for the compiled graph and returns it.
    """
    examples = [value_of(node) for node in placeholders_of(module.graph)]
    with compiling(name):
        return start_or_restore(compiler, module, examples)


def start_or_restore(compiler: Compiler, module: fx.GraphModule, examples: Sequence[Any]) -> Finish:
    """Look up the compiled graph in the cache, or start ``compiler`` on it."""
    if not _is_storing(compiler):
        return compiler.start(module, examples)
    options = as_options(compiler.options)
    sizes = SizeNames()
    try:
        key = compile_key(compiler, module, examples, options, sizes)
    except Indescribable as error:
        _log.info("compiled without the cache, since the graph holds %s", error)
        return compiler.start(module, examples)
    store = open_store(options)
    data = store.get(KIND, key)
    if data is not None:
        try:
            restored = compiler.restore(data, module, examples)
            return lambda: restored
        except PrecastError as error:
            store.discard(KIND, key)
            warn_of_cache(f"a stored graph is compiled anew: {error}")
    assumed = sizes.assumptions()
    finish = compiler.start(module, examples)
    # A guard that the compiler added on sizes would be missing in a process that only restores.
    if sizes.assumptions() != assumed:
        _log.info("not stored, since compiling added conditions on sizes")
        return finish

    def finish_and_store() -> CompiledFunction:
        compiled = finish()
        if (made := compiler.store(compiled)) is not None:
            store.put(KIND, key, made)
        return compiled

    return finish_and_store


def _is_storing(compiler: Compiler) -> bool:
    """Whether the compiler's results can be stored; raises if it defines only some of what that needs."""
    key: object = compiler.cache_key
    if key is None:
        return False
    is_alone = compiler.defines("store_alone") or compiler.defines("restore_alone")
    wanted = ("store", "restore", "store_alone", "restore_alone") if is_alone else ("store", "restore")
    missing = [name for name in wanted if not compiler.defines(name)]
    if missing or not isinstance(key, str):
        raise InputTypeError(
            f"the compiler {compiler.qualified_name} cannot be cached",
            why=f"it has a cache_key, but no {' and no '.join(missing)}" if missing else f"its cache_key is {key!r}",
            fix="give it a string as cache_key, store(compiled) and restore(data, graph_module, example_inputs)",
        )
    return True


def compile_key(
    compiler: Compiler, module: fx.GraphModule, examples: Sequence[Any], options: Options, sizes: SizeNames
) -> str:
    """The cache key: a hash of everything that affects the result of ``compiler``. Raises Indescribable."""
    text = graph_text(module, examples, sizes)
    decisive = [key_text(options), *_identity(compiler), *_surroundings(), processor_identity()]
    return content_key([text, sizes.assumptions(), *decisive])


def _identity(compiler: Compiler) -> list[str]:
    package = compiler.qualified_name.partition(".")[0]
    version = getattr(sys.modules.get(package), "__version__", None)
    return [compiler.qualified_name, str(version), str(compiler.cache_key)]


def _surroundings() -> list[str]:
    """Process-wide facts: versions, and torch's switches that change what ops compute."""
    return [
        f"precast {__version__}",
        f"torch {torch.__version__} {torch.version.git_version}",
        f"python {sys.version_info[:2]}",
        str(torch.get_default_dtype()),
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"precision {float32_precision()}",
    ]
