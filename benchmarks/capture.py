"""How long capturing takes, how it grows with depth, and how much memory it takes beside the model.

Target: BERT-base (forward, eval) in under 2 s on 2 cores, no memory for weights, time linear in the number of layers.
Run: ``python benchmarks/capture.py`` (Linux).
"""

import gc
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from precast.trace.capture import capture
from precast.trace.functionalize import functionalize

LAYERS = (6, 12, 24, 48)
REPEATS = 3


@dataclass(frozen=True)
class Row:
    """One measured model: the best time of each stage, and the growth of the process's peak memory.

    ``processor_seconds`` is capture's time without that spent waiting for other processes.
    """

    layers: int
    weights_megabytes: float
    capture_seconds: float
    processor_seconds: float
    functionalize_seconds: float
    nodes: int
    peak_growth_megabytes: float


def resident_megabytes(key: str) -> float:
    """``VmRSS``, the memory in use now, or ``VmHWM``, the most that was in use since ``forget_peak``."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    return int(lines[key].split()[0]) / 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def bert(layers: int) -> torch.nn.Module:
    """BERT-base with real weights in memory, so that a copy of them would show."""
    return transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers)).eval()


def measure(layers: int) -> Row:
    model = bert(layers)
    ids = torch.randint(0, 1000, (4, 128))
    gc.collect()
    forget_peak()
    before = resident_megabytes("VmRSS")
    captures, processor, functionalizations = [], [], []
    with torch.no_grad():
        for _ in range(REPEATS):
            started, busy = time.perf_counter(), time.process_time()
            program = capture(model, (), {"input_ids": ids})
            captured = time.perf_counter()
            processor.append(time.process_time() - busy)
            functional = functionalize(program)
            captures.append(captured - started)
            functionalizations.append(time.perf_counter() - captured)
    return Row(
        layers=layers,
        weights_megabytes=sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20,
        capture_seconds=min(captures),
        processor_seconds=min(processor),
        functionalize_seconds=min(functionalizations),
        nodes=len(functional.graph.nodes),
        peak_growth_megabytes=resident_megabytes("VmHWM") - before,
    )


def main() -> None:
    torch.set_num_threads(2)
    with torch.no_grad():
        capture(bert(1), (), {"input_ids": torch.ones(1, 8, dtype=torch.int64)})
    header = (
        "layers",
        "weights MB",
        "capture s",
        "of it busy s",
        "busy ms/layer",
        "functionalize s",
        "nodes",
        "peak growth MB",
    )
    print("  ".join(f"{name:>15}" for name in header))
    for layers in LAYERS:
        row = measure(layers)
        cells = (
            f"{row.layers}",
            f"{row.weights_megabytes:.0f}",
            f"{row.capture_seconds:.2f}",
            f"{row.processor_seconds:.2f}",
            f"{1000 * row.processor_seconds / row.layers:.1f}",
            f"{row.functionalize_seconds:.2f}",
            f"{row.nodes}",
            f"{row.peak_growth_megabytes:.0f}",
        )
        print("  ".join(f"{cell:>15}" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
