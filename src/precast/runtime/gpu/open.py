"""Opens the GPU code in a package: selects code that the GPU can run, and reports why if there is none."""

from __future__ import annotations

import re

from precast.artifact.gpu_code import PackedGpuCode, gpu_code_from_bytes
from precast.artifact.manifest import Target
from precast.artifact.package import Package
from precast.artifact.schema import damaged
from precast.errors import ArtifactError, GpuError
from precast.runtime.gpu.device import Gpu, gpu
from precast.runtime.gpu.driver import driver_version
from precast.runtime.gpu.model import GpuEntry, OpenGpuModel
from precast.runtime.processor import processor_features

NAME = re.compile(r"cuda:sm_(\d{2,3})")
_ONLY_ITS_OWN = 90
"""Code for this capability and newer runs on one capability only; older code also runs on newer GPUs of its family."""


def architecture_of(target: Target) -> int | None:
    """The capability that a target's code is for, e.g. 90; None for code for processors."""
    found = NAME.fullmatch(target.name)
    return None if found is None else int(found[1])


def runs_on(architecture: int, capability: int) -> bool:
    """Whether code for an architecture runs on GPUs of a capability."""
    if architecture >= _ONLY_ITS_OWN:
        return architecture == capability
    return architecture // 10 == capability // 10 and architecture <= capability


def gpu_features() -> frozenset[str]:
    """The architectures whose code the first GPU of this machine can run; empty without a GPU."""
    try:
        capability = gpu(0).capability
    except GpuError:
        return frozenset()
    return frozenset(f"sm_{each}" for each in range(80, capability + 1) if runs_on(each, capability))


def features_for(target: Target) -> frozenset[str]:
    """What this machine offers to a target's code: features of its processor, or of its GPU."""
    return processor_features() if architecture_of(target) is None else gpu_features()


def choose_gpu_target(package: Package, found: Gpu, wanted: str | None) -> Target:
    """The newest code in the file that the GPU can run."""
    every = {target: architecture for target in package.manifest.targets if (architecture := architecture_of(target))}
    if not every:
        raise ArtifactError(
            "the file has no code for GPUs",
            why=f"it has code for {', '.join(each.name for each in package.manifest.targets)}",
            fix=f"package the model for this one, targets=['cuda:sm_{found.capability}'], or load it for the CPU",
        )
    fitting = {
        target: architecture
        for target, architecture in every.items()
        if runs_on(architecture, found.capability) and wanted in (None, target.name)
    }
    if not fitting:
        raise GpuError(
            f"none of the file's code runs on {found.name}",
            why=f"the GPU's architecture is sm_{found.capability}, and the file has code for "
            f"{', '.join(each.name for each in every)}",
            fix=f"package the model for it, targets=['cuda:sm_{found.capability}'], or load it with device='cpu'",
        )
    return max(fitting, key=fitting.__getitem__)


def gpu_code(package: Package, target: Target) -> PackedGpuCode:
    """The target's code; only content that matches the file's hashes is parsed."""
    if target.file is None:
        raise damaged(f"the target {target.name!r} has no file", "a package holds its code in files")
    code = gpu_code_from_bytes(package.code(target.file))
    described = [entry.description for entry in code.entries]
    for mine, packed in zip(described, package.manifest.entries, strict=False):
        theirs = packed.interface
        if (mine.name, mine.inputs, mine.outputs) != (theirs.name, theirs.inputs, theirs.outputs):
            raise damaged("the manifest describes other entries than the code", "file and code do not belong together")
    if len(described) != len(package.manifest.entries) or code.architecture != architecture_of(target):
        raise damaged("the manifest describes other entries than the code", "file and code do not belong together")
    known = set(package.manifest.state)
    if any({*entry.updates, *filter(None, entry.program.weights)} - known for entry in code.entries):
        raise damaged("code for a GPU reads state that the file does not have", "they do not belong together")
    return code


def open_on_gpu(package: Package, ordinal: int, wanted: str | None) -> tuple[Target, OpenGpuModel, list[GpuEntry]]:
    """The file's model on a GPU."""
    found = gpu(ordinal)
    target = choose_gpu_target(package, found, wanted)
    code = gpu_code(package, target)
    major, minor = driver_version()
    if major < code.cuda:
        raise GpuError(
            "the CUDA driver is too old for the file's code",
            why=f"the driver knows CUDA up to {major}.{minor}, and the code was made with CUDA {code.cuda}",
            fix="install a newer driver of NVIDIA's, or load the model with device='cpu'",
        )
    opened = OpenGpuModel(found, code, package)
    return target, opened, [GpuEntry(opened, each, each.description) for each in code.entries]
