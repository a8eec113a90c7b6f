"""Write every graph of AOT autograd to disk: ``{folder}/{name}/{name}_{forward|backward|joint}_{index}/``.

The graphs of one compilation share an index. An index is claimed by exclusively creating a file, so that any number of
dumpers, threads and processes may write under one name, and nothing is overwritten.
"""

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path

import torch
from torch import fx
from torch._subclasses import FakeTensor

from precast.autograd import aot_module_simplified
from precast.debug.input_metadata import read_input_metadata
from precast.debug.saved_graph import EXAMPLES_FILE, placeholder_names, save_example_inputs, save_graph
from precast.debug.tensor_file import read_tensors
from precast.errors import InputValueError
from precast.ops.decompositions import default_decompositions
from precast.partition import default_partition

# The key in `GraphModule.meta`, which copies keep, for the index of a graph's compilation.
_INDEX = "precast_dump_index"


def graph_dumper_aot(current_name: str, folder_name: str | Path, dump_example_input: bool = False) -> "GraphDumper":
    """Return a dumper: ``dumper(module, example_inputs)`` saves a module's joint, forward and backward graphs.

    Pass its ``fw_compiler``, ``bw_compiler`` and ``partition_fn`` to ``aot_function`` and related functions to do the
    same there. The metadata of the inputs is saved with each graph, and with ``dump_example_input=True`` also the
    inputs of its first run.
    """
    if current_name in ("", ".", "..") or Path(current_name).name != current_name:
        raise InputValueError(
            f"{current_name!r} cannot name a folder of graphs",
            why="the graphs are saved as folder/name/name_forward_0 and so on",
            fix="pass a plain name, and the place as folder_name",
        )
    return GraphDumper(current_name, Path(folder_name), dump_example_input)


class GraphDumper:
    """Saves graphs, and runs them as they were captured."""

    def __init__(self, name: str, folder: Path, dump_example_inputs: bool):
        self.name = name
        self.folder = folder / name
        self.dump_example_inputs = dump_example_inputs

    def __call__(self, graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Compile a module through AOT autograd, saving its graphs; for ``torch.compile(backend=…)``."""
        return aot_module_simplified(
            graph_module,
            example_inputs,
            fw_compiler=self.fw_compiler,
            bw_compiler=self.bw_compiler,
            partition_fn=self.partition_fn,
            decompositions=default_decompositions,
        )

    def fw_compiler(self, graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Save a forward graph."""
        index = self._index_of(graph_module)
        return self._saving_inputs(graph_module, self._save("forward", index, graph_module, example_inputs))

    def bw_compiler(self, graph_module: fx.GraphModule, example_inputs: Sequence[object]) -> Callable[..., object]:
        """Save a backward graph; its first run completes the joint graph's example inputs."""
        index = self._index_of(graph_module)
        folder = self._save("backward", index, graph_module, example_inputs)
        return self._saving_inputs(graph_module, folder, then=lambda: self._save_joint_inputs(index))

    def partition_fn(
        self, joint_module: fx.GraphModule, joint_inputs: Sequence[object], **options: object
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        """Save a joint graph, then partition it with ``default_partition``."""
        index = self._claim_index()
        self._save("joint", index, joint_module, _flat(joint_inputs))
        forward, backward = default_partition(joint_module, joint_inputs, **options)  # type: ignore[arg-type]
        forward.meta[_INDEX] = backward.meta[_INDEX] = index
        return forward, backward

    def _index_of(self, graph_module: fx.GraphModule) -> int:
        """Return the index of the compilation that split off this graph; a new one for a graph without gradients."""
        known: int | None = graph_module.meta.get(_INDEX)
        return self._claim_index() if known is None else known

    def _claim_index(self) -> int:
        claims = self.folder / ".claimed"
        claims.mkdir(parents=True, exist_ok=True)
        for index in count():
            try:
                (claims / str(index)).touch(exist_ok=False)
            except FileExistsError:
                continue
            return index
        raise AssertionError("numbers end nowhere")

    def _folder_of(self, kind: str, index: int) -> Path:
        return self.folder / f"{self.name}_{kind}_{index}"

    def _save(self, kind: str, index: int, graph_module: fx.GraphModule, inputs: Sequence[object]) -> Path:
        folder = save_graph(graph_module, self._folder_of(kind, index), inputs)
        if self.dump_example_inputs and not any(isinstance(value, FakeTensor | torch.SymInt) for value in inputs):
            save_example_inputs(folder, placeholder_names(graph_module), inputs)
        return folder

    def _saving_inputs(
        self, graph_module: fx.GraphModule, folder: Path, then: Callable[[], None] = lambda: None
    ) -> Callable[..., object]:
        """Return the graph; if inputs are to be dumped and not known yet, its first run saves them."""
        if not self.dump_example_inputs:
            return graph_module

        def run(*inputs: object) -> object:
            if not (folder / EXAMPLES_FILE).exists():
                save_example_inputs(folder, placeholder_names(graph_module), inputs)
                then()
            return graph_module(*inputs)

        return run

    def _save_joint_inputs(self, index: int) -> None:
        """Assemble the joint graph's inputs: primals from the forward's run, tangents from the backward's."""
        joint = self._folder_of("joint", index)
        if not joint.exists() or (joint / EXAMPLES_FILE).exists():
            return
        known = {
            **read_tensors(self._folder_of("backward", index) / EXAMPLES_FILE),
            **read_tensors(self._folder_of("forward", index) / EXAMPLES_FILE),
        }
        names = [str(entry["name"]) for entry in read_input_metadata(joint)]
        save_example_inputs(joint, names, [known.get(name) for name in names])


def _flat(joint_inputs: Sequence[object]) -> list[object]:
    """Return joint inputs as one list; they come as (primals, tangents)."""
    return [value for part in joint_inputs for value in (part if isinstance(part, tuple | list) else [part])]
