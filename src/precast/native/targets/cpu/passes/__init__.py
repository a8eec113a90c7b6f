"""The pass pipeline for CPUs: the order of all passes, shared ones and those made for oneDNN.

``layouts`` channels-last images · ``epilogues``, ``prologues`` fused into routines ·
``batch_tiling`` batches that exceed a cache · ``quantized_weights`` GEMMs with quantized weights ·
``shared_heads`` keys and values shared by several heads
"""

from __future__ import annotations

from precast.native.loops.passes import LoopPass, run_loop_passes
from precast.native.loops.program import LoopProgram
from precast.native.passes.coalesce import scatter_onto, write_in_place
from precast.native.passes.collapse import collapse_loops
from precast.native.passes.early_updates import update_early
from precast.native.passes.epilogues import absorb_epilogues
from precast.native.passes.group import group_kernels
from precast.native.passes.inline import inline_producers
from precast.native.passes.layouts import channels_last, fold_padding
from precast.native.passes.memory import overwrite_dying
from precast.native.passes.merge import merge_kernels
from precast.native.passes.rounding import keep_single_precision
from precast.native.passes.split import part_loops, split_loops
from precast.native.passes.tidy import forward_stores, order_loops, remove_dead, tidy_names
from precast.native.passes.update_inputs import update_inputs
from precast.native.targets.cpu.passes.batch_tiling import take_image_by_image
from precast.native.targets.cpu.passes.prologues import absorb_prologues
from precast.native.targets.cpu.passes.quantized_weights import read_quantized_weights
from precast.native.targets.cpu.passes.shared_heads import read_shared_heads

PASSES: tuple[LoopPass, ...] = (
    fold_padding,
    channels_last,
    inline_producers,
    read_quantized_weights,
    read_shared_heads,
    remove_dead,
    scatter_onto,
    absorb_epilogues,
    absorb_prologues,
    write_in_place,
    split_loops,
    collapse_loops,
    merge_kernels,
    forward_stores,
    keep_single_precision,
    remove_dead,
    part_loops,
    collapse_loops,
    order_loops,
    tidy_names,
    update_inputs,
    update_early,
    overwrite_dying,
    group_kernels,
    take_image_by_image,
)
REUSING = (update_inputs, overwrite_dying)
"""Passes that reuse a buffer's memory for another."""


def fuse(program: LoopProgram, *, verify: bool = True) -> LoopProgram:
    """Run all fusion passes; the program's results do not change."""
    return run_loop_passes(program, PASSES, reusing=REUSING, verify=verify)
