"""Compiles Triton kernels requested on standard input, in a process of its own, which may crash without harm.

A request line is a ``KernelSource``, with the ``architecture`` and a ``folder`` to write to; the reply line is about
the same kernel: ``{"cubin": file, "shared": bytes, …}`` or ``{"error": why}``. Never imports torch.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Serve requests until standard input ends."""
    # Imported before the first request arrives.
    import_module("triton.compiler")
    answers = sys.stdout
    # Compiler output must not be mistaken for a reply.
    sys.stdout = sys.stderr
    for number, line in enumerate(sys.stdin):
        try:
            answer = compile_kernel(json.loads(line), number)
        except Exception:  # noqa: BLE001  # reported to the requester
            answer = {"error": traceback.format_exc(limit=-6)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def compile_kernel(job: dict[str, Any], number: int) -> dict[str, Any]:
    """Compile one kernel into a folder; returns the reply, with its launch parameters."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    folder = Path(job["folder"])
    source = folder / f"kernel_{number}.py"
    source.write_text(job["text"])
    function = getattr(_loaded(source, f"precast_kernel_{number}"), job["name"])
    kinds = dict(zip(function.arg_names, job["signature"], strict=True))
    types = {name: kind.partition(":")[0] for name, kind in kinds.items()}
    # Pointers are multiples of 16 bytes, and some sizes multiples of 16: the launcher guarantees that.
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, kind in enumerate(kinds.values())
        if kind[0] == "*" or ":" in kind
    }
    compiled = triton.compile(
        ASTSource(function, types, {}, aligned),
        target=GPUTarget("cuda", job["architecture"], 32),
        options={
            "num_warps": job["warps"],
            "debug": job["asserts"],
            "sanitize_overflow": False,
            "enable_reflect_ftz": False,
        },
    )
    cubin = folder / f"kernel_{number}.cubin"
    cubin.write_bytes(compiled.asm["cubin"])
    metadata = compiled.metadata
    assert not metadata.global_scratch_size, "our kernels need no scratch memory of Triton's"
    return {"cubin": str(cubin), "symbol": metadata.name, "shared": metadata.shared, "warps": metadata.num_warps}


def _loaded(path: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
