"""Selects the native code of a file that this processor can run."""

from __future__ import annotations

import platform
from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path

from precast.artifact.manifest import Target
from precast.errors import ArtifactError

V3_FEATURES = ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")
V4_FEATURES = (*V3_FEATURES, "avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")
LEVELS = {"x86-64-v3": V3_FEATURES, "x86-64-v4": V4_FEATURES}
"""The x86-64 levels beyond the first two, and Linux's names of the features that they require."""

# Features that compilers use by default when compiling for one processor, by Linux's names.
_USED_BY_COMPILERS = (
    *V4_FEATURES, "sse4a", "lzcnt", "popcnt", "sse4_1", "sse4_2", "ssse3", "pni", "adx", "aes", "pclmulqdq", "vaes",
    "vpclmulqdq", "gfni", "sha_ni", "avx512ifma", "avx512vbmi", "avx512_vbmi2", "avx512_vnni", "avx512_bitalg",
    "avx512_vpopcntdq", "avx512_bf16", "avx512_fp16", "avx512_vp2intersect", "avx_vnni", "avx_ifma", "avx_vnni_int8",
    "avx_ne_convert", "amx_tile", "amx_int8", "amx_bf16", "amx_fp16", "xop", "fma4", "tbm", "movdiri", "serialize",
)  # fmt: skip


@cache
def processor_features() -> frozenset[str]:
    """The features of this processor and its operating system, by Linux's names; the architecture is among them."""
    facts = Path("/proc/cpuinfo")
    lines = facts.read_text().splitlines() if facts.exists() else []
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return frozenset([*flags.split(), platform.machine()])


def features_of_this_machine() -> tuple[str, ...]:
    """The features that code compiled for exactly this machine may use."""
    features = processor_features()
    return tuple(sorted({platform.machine(), *(each for each in _USED_BY_COMPILERS if each in features)}))


def choose_target(targets: Sequence[Target], features: Collection[str], *, wanted: str | None = None) -> Target:
    """The target with the most features that are available; refuses if none fits."""
    candidates = [each for each in targets if wanted in (None, each.name) and not each.name.startswith("cuda:")]
    if not candidates:
        raise ArtifactError(
            f"the file has no code for the target {wanted!r}" if wanted else "the file has no native code",
            why=f"it has code for {', '.join(target.name for target in targets) or 'nothing'}",
            fix="name one of these, or package the model for that target",
        )
    fitting = [target for target in candidates if set(target.features) <= set(features)]
    if not fitting:
        lacking = [f"{each.name} needs {', '.join(sorted(set(each.features) - set(features)))}" for each in candidates]
        raise ArtifactError(
            "none of the file's native code can run on this processor",
            why=f"the processor lacks something: {'; '.join(lacking)}",
            fix="package the model for an older target too, for example targets=('x86-64-v3',)",
        )
    return max(fitting, key=lambda target: len(target.features))
