"""What of this machine decides which code suits it."""

import platform
from functools import cache
from pathlib import Path

_TELLING = ("vendor_id", "cpu family", "model", "model name", "flags", "CPU implementer", "CPU part", "Features")


@cache
def processor_identity() -> str:
    """The processor's model and instructions: equal texts mean that code tuned for one runs as well on the other."""
    facts = Path("/proc/cpuinfo")
    return telling_lines(facts.read_text()) if facts.exists() else f"{platform.machine()} {platform.processor()}"


def telling_lines(facts: str) -> str:
    """What ``/proc/cpuinfo`` says of kinds of processors, leaving out how many there are and how fast they now run."""
    lines = (line for line in facts.splitlines() if line.partition(":")[0].strip() in _TELLING)
    return "\n".join(dict.fromkeys(lines))
