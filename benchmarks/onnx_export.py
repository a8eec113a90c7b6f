"""How long exporting BERT-base to ONNX takes, and how fast the file runs, beside ``torch.onnx.export(dynamo=True)``.

Target: no slower to export, no slower in onnxruntime, no larger. Both are measured in turns, first one, then the other
ahead, so that a busy machine treats them alike; the best of each counts. Both work in one thread: its processor time is
taken.
Run: ``python benchmarks/onnx_export.py [layers]``.
"""

import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import onnxruntime
import torch
import transformers

from precast import onnx as precast_onnx
from precast.trace.capture import Dim

EXPORTS = 3
RUNS = 15
OPSETS = (20, 23)


def bert(layers: int) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = transformers.BertModel(transformers.BertConfig(num_hidden_layers=layers)).eval()
    ids = torch.randint(0, 1000, (2, 64))
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


def export_with_precast(model: torch.nn.Module, inputs: dict[str, torch.Tensor], path: Path, opset: int) -> None:
    sizes = {0: Dim("batch", max=64), 1: Dim("length", max=512)}
    # The other exporter does not verify either.
    options = {"dynamic_shapes": dict.fromkeys(inputs, sizes), "opset": opset, "external_data": True, "verify": False}
    precast_onnx.export(model, (), path, kwargs=inputs, **options)


def export_with_torch(model: torch.nn.Module, inputs: dict[str, torch.Tensor], path: Path, opset: int) -> None:
    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=512)}
    shapes = dict.fromkeys(inputs, sizes)
    torch.onnx.export(
        model, (), path, kwargs=inputs, dynamo=True, dynamic_shapes=shapes, opset_version=opset, verbose=False
    )


EXPORTERS: dict[str, Callable[..., None]] = {"precast": export_with_precast, "torch": export_with_torch}


def best_in_turns(functions: dict[str, Callable[[], object]], count: int) -> dict[str, float]:
    best = dict.fromkeys(functions, float("inf"))
    for turn in range(count):
        for name in sorted(functions, reverse=turn % 2 == 1):
            started = time.process_time()
            functions[name]()
            best[name] = min(best[name], time.process_time() - started)
    return best


def session(path: Path) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


def main() -> None:
    warnings.simplefilter("ignore")
    model, inputs = bert(int(sys.argv[1]) if len(sys.argv) > 1 else 12)
    arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
    with tempfile.TemporaryDirectory() as folder:
        for opset in OPSETS:
            paths = {name: Path(folder, f"{name}_{opset}.onnx") for name in EXPORTERS}
            exports = {name: partial(run, model, inputs, paths[name], opset) for name, run in EXPORTERS.items()}
            export_seconds = best_in_turns(exports, EXPORTS)
            runs = {name: partial(session(path).run, None, arrays) for name, path in paths.items()}
            run_seconds = best_in_turns(runs, RUNS)
            for name in EXPORTERS:
                exported, ran = export_seconds[name], 1000 * run_seconds[name]
                size = sum(file.stat().st_size for file in Path(folder).glob(f"{paths[name].name}*")) / 1e6
                print(f"opset {opset}  {name:8} export {exported:6.2f} s   run {ran:7.1f} ms   size {size:7.2f} MB")


if __name__ == "__main__":
    main()
