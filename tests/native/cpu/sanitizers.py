"""How to build and load code that watches its own memory and arithmetic."""

import subprocess

FLAGS = ("-fsanitize=address,undefined", "-O1", "-fno-sanitize-recover=undefined")


def environment() -> dict[str, str]:
    """What a process needs that loads such code: the sanitizers' libraries must be there before Python."""
    libraries = ":".join(_runtime_library(name) for name in ("libasan.so", "libubsan.so"))
    return {"LD_PRELOAD": libraries, "ASAN_OPTIONS": "detect_leaks=0"}


def _runtime_library(name: str) -> str:
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
