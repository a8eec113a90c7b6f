"""The contenders that read an ONNX file. Their processes never import torch, so that their memory is their own."""

import time
from collections.abc import Callable
from pathlib import Path

import numpy

from benchmarks.peers.workload import Workload

Call = Callable[[], numpy.ndarray]


def export(workload: Workload, folder: Path) -> None:
    """Write the workload's model and inputs where both contenders find them, with PyTorch's own exporter.

    How long that takes is written beside them: it is part of the way to a first result.
    """
    import torch

    from benchmarks.peers.making import make

    model, inputs = make(workload)
    started = time.perf_counter()
    torch.onnx.export(model, (inputs,), folder / "model.onnx", dynamo=True, verbose=False)
    numpy.save(folder / "export_seconds.npy", time.perf_counter() - started)
    numpy.save(folder / "inputs.npy", inputs.numpy())


def start(contender: str, folder: Path, threads: int) -> Call:
    """Load the file; the function that comes back runs it once. What fails here may be the export's failure."""
    return {"onnxruntime": _onnxruntime, "openvino": _openvino}[contender](folder, threads)


def _onnxruntime(folder: Path, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(folder / "model.onnx", options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: numpy.load(folder / "inputs.npy")}
    return lambda: session.run(None, feed)[0]


def _openvino(folder: Path, threads: int) -> Call:
    import openvino

    # Float32 as the others compute: processors with bfloat16 instructions would be given that otherwise.
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(folder / "model.onnx", "CPU", settings)
    request, inputs = compiled.create_infer_request(), numpy.load(folder / "inputs.npy")

    def call() -> numpy.ndarray:
        request.infer([inputs])
        return request.get_output_tensor(0).data

    return call
