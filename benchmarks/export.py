"""How long exporting, saving and loading take, and how much memory loading needs beside the mapped file.

BERT-base has 440 MB of weights: saving must not copy them, loading must map them. A 48-layer GPT shows that the
program's JSON stays small and quick. PyTorch's own export is run beside ours.
"""

import gc
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers

from precast.export import export, load, save
from precast.export.serialize.document import from_document, to_document

LOAD = """
import json, resource, sys, time
import torch, transformers, {modeling}
from precast.export import load
def private_megabytes():
    lines = open("/proc/self/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")) / 1024
before = private_megabytes()
started = time.perf_counter()
program = load({path!r}, check_weights={check})
seconds = time.perf_counter() - started
print(json.dumps({{"seconds": seconds, "megabytes": private_megabytes() - before}}))
"""


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def peak_megabytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def load_in_new_process(path: Path, modeling: str, *, check: bool) -> dict[str, float]:
    code = LOAD.format(path=str(path), modeling=modeling, check=check)
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])


def bert_base(folder: Path) -> None:
    model = transformers.BertModel(transformers.BertConfig()).eval()
    inputs = {"input_ids": torch.ones(1, 16, dtype=torch.int64)}
    seconds, exported = timed(lambda: export(model, (), inputs))
    print(f"BERT-base  export {seconds:.2f} s")
    path = folder / "bert.pt2"
    before = peak_megabytes()
    seconds, _ = timed(lambda: save(exported, path))
    size = path.stat().st_size / 2**20
    print(f"BERT-base  save {seconds:.2f} s, {size:.0f} MB, peak memory +{peak_megabytes() - before:.0f} MB")
    for check in (True, False):
        found = load_in_new_process(path, model.__class__.__module__, check=check)
        what = "with" if check else "without"
        print(f"BERT-base  load {what} hashes {found['seconds']:.2f} s, own memory +{found['megabytes']:.0f} MB")
    theirs, _ = timed(lambda: torch.export.export(model, (), inputs, strict=False))
    print(f"BERT-base  export by torch.export {theirs:.2f} s")
    repeated_exports(model, inputs)


def repeated_exports(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    """Later exports in a process, by turns, in processor time: a busy machine matters less."""

    def seconds(work: Callable[[], object]) -> float:
        gc.collect()
        started = time.process_time()
        work()
        return time.process_time() - started

    pairs = [
        (
            seconds(lambda: export(model, (), inputs)),
            seconds(lambda: torch.export.export(model, (), inputs, strict=False)),
        )
        for _ in range(5)
    ]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    print(f"BERT-base  export again {ours:.2f} s, by torch.export {theirs:.2f} s (processor time)")


def deep_gpt(folder: Path) -> None:
    config = transformers.GPT2Config(n_layer=48, n_embd=64, n_head=4, vocab_size=1000, use_cache=False)
    model = transformers.GPT2LMHeadModel(config).eval()
    inputs = {"input_ids": torch.ones(1, 16, dtype=torch.int64)}
    seconds, exported = timed(lambda: export(model, (), inputs))
    print(f"GPT 48     export {seconds:.2f} s, {len(exported.graph.nodes)} nodes")
    writing, document = timed(lambda: to_document(exported))
    text, dump = timed(lambda: json.dumps(document.content))
    parse, content = timed(lambda: json.loads(dump))
    reading, _ = timed(lambda: from_document(content, document.members))
    path = folder / "gpt.pt2"
    saving, _ = timed(lambda: save(exported, path))
    loading, _ = timed(lambda: load(path))
    with zipfile.ZipFile(path) as archive:
        size = archive.getinfo("program.json").file_size / 2**20
    print(f"GPT 48     program.json {size:.2f} MB; written {writing + text:.2f} s, read {parse + reading:.2f} s")
    print(f"GPT 48     save {saving:.2f} s, load {loading:.2f} s")


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        bert_base(Path(name))
        deep_gpt(Path(name))
