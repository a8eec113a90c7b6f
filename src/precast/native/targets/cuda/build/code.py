"""Code for a GPU: serialized programs, and cubins of their kernels, all of it kept in the cache.

A kernel that Triton fails to compile is not an error: it is run as interpreted loops, slowly.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from precast.artifact.gpu_programs import GpuProgram, program_from_json, program_to_json
from precast.cache import Store, content_key
from precast.errors import BuildError
from precast.native.describe import Entry
from precast.native.loops.program import Kernel, KernelGroup
from precast.native.targets import Code
from precast.native.targets.cuda.build.cubins import Cubin, cubin_key, find_cubin, start_cubins
from precast.native.targets.cuda.codegen.generate import generate
from precast.native.targets.cuda.kernel_source import KernelSource

_KIND = "gpu_programs"


@dataclass(frozen=True, kw_only=True)
class GpuCode(Code):
    """Programs, and the kernels that they launch by number."""

    programs: Sequence[GpuProgram]
    sources: Sequence[KernelSource]
    cubins: Sequence[Cubin | BuildError]
    loops: Sequence[Kernel | KernelGroup | None] = field(default=(), repr=False)
    """The loops of kernels that did not compile."""


def start_code(entries: Sequence[Entry], architecture: int, store: Store) -> Callable[[], GpuCode]:
    """Generate the entries' programs and begin to compile their kernels; the returned function waits for them."""
    programs, sources, loops = generate(entries)
    wait = start_cubins(sources, architecture, store)

    def finish() -> GpuCode:
        cubins = wait()
        document = {
            "programs": [program_to_json(each) for each in programs],
            "kernels": [asdict(each) for each in sources],
            "cubins": [cubin_key(each, architecture) for each in sources],
        }
        data = json.dumps(document).encode()
        key = content_key([data.decode()])
        is_whole = not any(isinstance(each, BuildError) for each in cubins)
        if is_whole:
            store.put(_KIND, key, data)
        return GpuCode(key, programs=programs, sources=sources, cubins=cubins, loops=loops)

    return finish


def find_code(key: str, store: Store) -> GpuCode:
    """What was built before; a ``BuildError`` if a part of it has been evicted."""
    with store.held():
        data = store.get(_KIND, key)
        if data is None:
            raise _gone()
        document = json.loads(data)
        sources = [KernelSource(**{**each, "signature": tuple(each["signature"])}) for each in document["kernels"]]
        cubins = [_found(find_cubin(each, store)) for each in document["cubins"]]
    programs = tuple(program_from_json(each) for each in document["programs"])
    return GpuCode(key, programs=programs, sources=sources, cubins=cubins)


def _found(cubin: Cubin | None) -> Cubin:
    if cubin is None:
        raise _gone()
    return cubin


def _gone() -> BuildError:
    return BuildError(
        "code for a GPU is no longer in the cache", why="it was evicted", fix="nothing to do: it is built again"
    )
