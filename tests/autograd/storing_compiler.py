"""A compiler whose results can be stored, for tests: it stores the graph's own source, and counts what it does."""

import json
from dataclasses import dataclass, field
from operator import attrgetter
from types import SimpleNamespace

import torch

from precast import Compiler
from precast.errors import ArtifactError
from precast.options import Options


@dataclass
class StoringCompiler(Compiler):
    """Compiles to the graph's source; what is restored runs that source, not the graph that is at hand."""

    options: Options
    cache_key: str = "1"
    compiled: int = 0
    restored: int = 0
    written: list[bytes] = field(default_factory=list)

    def __call__(self, graph_module, example_inputs):
        self.compiled += 1
        return runnable(graph_module.code, constants_of(graph_module))

    def store(self, compiled):
        data = json.dumps({"source": compiled.source, "constants": list(compiled.constants)}).encode()
        self.written.append(data)
        return data

    def restore(self, data, graph_module, example_inputs):
        read = json.loads(data)
        if read["source"] == "of no use":
            raise ArtifactError("it is of no use", why="a test says so", fix="compile")
        self.restored += 1
        # Names of constants are not in the key, so theirs are taken in order.
        constants = dict(zip(read["constants"], constants_of(graph_module).values(), strict=True))
        return runnable(read["source"], constants)


def constants_of(graph_module):
    names = dict.fromkeys(node.target for node in graph_module.graph.nodes if node.op == "get_attr")
    return {name: attrgetter(name)(graph_module) for name in names}


def runnable(source, constants):
    scope = {"torch": torch, "device": torch.device, "inf": float("inf"), "nan": float("nan")}
    exec(source, scope)
    holder = SimpleNamespace(**constants)

    def run(*inputs):
        return scope["forward"](holder, *inputs)

    run.source, run.constants = source, constants
    return run
