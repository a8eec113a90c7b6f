"""What the numbers were measured on, in words."""

import os
import platform
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "transformers", "onnxruntime", "openvino", "onednn-cpu-gomp")


def describe() -> dict[str, str]:
    """The processor, the system and the versions that matter."""
    facts = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.split(":", 1)[1].strip() for line in facts if line.startswith("model name")), platform.machine())
    flags = next((line.split() for line in facts if line.startswith("flags")), [])
    vectors = [name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": f"{model}, {len(os.sched_getaffinity(0))} cores, {' '.join(vectors)}",
        "memory": f"{memory:.0f} GiB",
        "system": f"{platform.system()} {platform.release().split('-')[0]}, Python {platform.python_version()}",
        "load before the run": load_now(),
        **{name: version for name in PACKAGES if (version := _version(name))},
    }


def load_now() -> str:
    """How busy the machine is, beside us."""
    return f"{os.getloadavg()[0]:.1f}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
