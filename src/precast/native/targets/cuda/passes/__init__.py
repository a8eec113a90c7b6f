"""The pass pipeline for GPUs: the order of all passes, shared ones and those made for GPUs.

``biases`` fused into GEMMs · ``recompute`` what a kernel stores for itself · ``single`` doubles that only serve
sums · ``one_nest`` kernels that are one launch each · ``split_reductions`` long reductions with few results ·
``along_memory`` loop interchange · ``padding`` rows of matrices · ``grouping`` horizontal fusion
"""

from __future__ import annotations

from precast.native.loops.passes import LoopPass
from precast.native.loops.program import LoopProgram
from precast.native.passes.coalesce import scatter_onto, write_in_place
from precast.native.passes.collapse import collapse_loops
from precast.native.passes.inline import inline_producers
from precast.native.passes.layouts import channels_last
from precast.native.passes.memory import overwrite_dying
from precast.native.passes.merge import merge_kernels
from precast.native.passes.rounding import keep_single_precision
from precast.native.passes.split import split_loops
from precast.native.passes.tidy import forward_stores, remove_dead, tidy_names
from precast.native.passes.update_inputs import update_inputs
from precast.native.targets.cuda.passes.along_memory import run_along_memory
from precast.native.targets.cuda.passes.biases import absorb_biases
from precast.native.targets.cuda.passes.grouping import group_alike
from precast.native.targets.cuda.passes.one_nest import one_nest_each
from precast.native.targets.cuda.passes.padding import align_rows
from precast.native.targets.cuda.passes.recompute import compute_again
from precast.native.targets.cuda.passes.single import compute_in_single_precision
from precast.native.targets.cuda.passes.split_reductions import split_reductions


def images_channels_last(program: LoopProgram) -> LoopProgram:
    """Images and filters in the layout for tensor cores."""
    return channels_last(program, weights=True)


def inline_for_gpus(program: LoopProgram) -> LoopProgram:
    """Neither torch nor cuBLAS has views with negative strides."""
    return inline_producers(program, reversed_views=False)


PASSES: tuple[LoopPass, ...] = (
    images_channels_last,
    inline_for_gpus,
    remove_dead,
    scatter_onto,
    absorb_biases,
    align_rows,
    write_in_place,
    split_loops,
    collapse_loops,
    merge_kernels,
    forward_stores,
    compute_again,
    keep_single_precision,
    remove_dead,
    compute_in_single_precision,
    one_nest_each,
    split_reductions,
    run_along_memory,
    collapse_loops,
    tidy_names,
    update_inputs,
    overwrite_dying,
    group_alike,
)
REUSING = (update_inputs, overwrite_dying)
"""Passes that reuse a buffer's memory for another."""
