"""Validation rules for the arguments of operators whose kernels do not check them.

These kernels trust shapes of saved tensors, and indices, since autograd passes valid ones; a program from a file may
pass others. Each rule is written in terms of the operator's own argument names.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import torch

Arguments = Mapping[str, Any]
Rule = Callable[[Arguments], bool]


def _in_range(indices: Any, below: int, *, lowest: int = 0, also: int | None = None) -> bool:
    """Whether all indices are in [``lowest``, ``below``), or equal ``also``."""
    is_inside = (indices >= lowest) & (indices < below)
    return bool((is_inside if also is None else is_inside | (indices == also)).all())


def _has_size(tensor: Any, count: int) -> bool:
    return tensor is None or tensor.numel() == count


def _channels_fit(given: Arguments) -> bool:
    source = given["input"]
    if source.dim() < 2:
        return False
    per_channel = ("weight", "bias", "running_mean", "running_var", "save_mean", "save_invstd", "save_var")
    channels = source.shape[1]
    is_same = "grad_out" not in given or given["grad_out"].shape == source.shape
    saved = ("save_mean", "save_invstd", "save_var")
    is_training = given.get("training", given.get("train", given.get("update", False)))
    # In evaluation mode, mean and variance are the running ones.
    has_statistics = is_training or (given.get("running_mean") is not None and given.get("running_var") is not None)
    return (
        is_same
        and has_statistics
        and all(
            _has_size(given.get(name), channels)
            or (name in saved and not is_training and _has_size(given.get(name), 0))
            for name in per_channel
        )
    )


def _layer_norm_fits(given: Arguments) -> bool:
    source, inner = given["input"], list(given["normalized_shape"])
    outer = source.dim() - len(inner)
    if outer < 0 or not inner or list(source.shape[outer:]) != inner:
        return False
    rows = prod(source.shape[:outer])
    return (
        given["grad_out"].shape == source.shape
        and all(_has_size(given[name], rows) for name in ("mean", "rstd"))
        and all(_has_size(given[name], prod(inner)) for name in ("weight", "bias"))
    )


def _group_norm_fits(given: Arguments) -> bool:
    source, groups = given["input"], given["group"]
    batch, channels, pixels = given["N"], given["C"], given["HxW"]
    if min(batch, channels, pixels) < 0 or groups <= 0 or channels % groups:
        return False
    count = batch * channels * pixels
    return (
        source.numel() == count
        and _has_size(given.get("grad_out"), count)
        and all(_has_size(given.get(name), batch * groups) for name in ("mean", "rstd"))
        and all(_has_size(given.get(name), channels) for name in ("weight", "bias"))
    )


def _rms_norm_fits(given: Arguments) -> bool:
    source, inner = given["input"], list(given["normalized_shape"])
    outer = source.dim() - len(inner)
    if outer < 0 or not inner or list(source.shape[outer:]) != inner:
        return False
    is_same = "grad_out" not in given or given["grad_out"].shape == source.shape
    return (
        is_same and _has_size(given.get("rstd"), prod(source.shape[:outer])) and _has_size(given["weight"], prod(inner))
    )


def _softmax_fits(given: Arguments) -> bool:
    rank = max(given["output"].dim(), 1)
    return bool(given["grad_output"].shape == given["output"].shape and -rank <= given["dim"] < rank)


def _transform_fits(given: Arguments) -> bool:
    source, dims = (
        given["self"],
        [dim % source_rank for dim in given["dim"]] if (source_rank := given["self"].dim()) else [],
    )
    is_inside = all(-source.dim() <= dim < source.dim() for dim in given["dim"])
    has_elements = source.numel() > 0 and 0 < given.get("last_dim_size", 1) < 2**40
    return bool(dims) and is_inside and len(set(dims)) == len(dims) and has_elements and _one_sided_fits(given)


def _one_sided_fits(given: Arguments) -> bool:
    if "last_dim_size" not in given:
        return True
    return bool(given["last_dim_size"] // 2 + 1 <= given["self"].shape[given["dim"][-1]])


def _pivots_fit(given: Arguments) -> bool:
    matrix, pivots = given["LU_data"], given["LU_pivots"]
    if matrix.dim() < 2 or pivots.dim() != matrix.dim() - 1 or pivots.dtype != torch.int32:
        return False
    rows, columns = matrix.shape[-2:]
    fits = pivots.shape == (*matrix.shape[:-2], min(rows, columns))
    return fits and _in_range(pivots, rows + 1, lowest=1)


def _distances_fit(given: Arguments) -> bool:
    first, second = given["x1"], given["x2"]
    if first.dim() < 2 or second.dim() != first.dim() or first.shape[-1] != second.shape[-1]:
        return False
    shape = (*first.shape[:-2], first.shape[-2], second.shape[-2])
    return bool(first.shape[:-2] == second.shape[:-2] and given["grad"].shape == shape == given["cdist"].shape)


def _pair_distances_fit(given: Arguments) -> bool:
    if given["self"].dim() != 2:
        return False
    rows = given["self"].shape[0]
    return all(tuple(given[name].shape) == (rows * (rows - 1) // 2,) for name in ("grad", "pdist"))


def _pooled(source: str, grad: str, spatial: int, *indices: str) -> Rule:
    """Gradients of pooling: matching batch and channels, and indices in range."""

    def holds(given: Arguments) -> bool:
        pixels, gradient = given[source], given[grad]
        rank = pixels.dim()
        if rank not in (spatial + 1, spatial + 2) or gradient.dim() != rank or 0 in pixels.shape[1:]:
            return False
        count = prod(pixels.shape[rank - spatial :])
        is_same = gradient.shape[: rank - spatial] == pixels.shape[: rank - spatial]
        return is_same and all(
            given[name].shape == gradient.shape and given[name].dtype == torch.int64 and _in_range(given[name], count)
            for name in indices
        )

    return holds


def _averaged(spatial: int) -> Rule:
    """Gradients of average pooling: the number of windows follows from the sizes."""
    is_pooled = _pooled("self", "grad_output", spatial)

    def holds(given: Arguments) -> bool:
        windows = [_per_dimension(given[name], spatial) for name in ("kernel_size", "stride", "padding")]
        if not is_pooled(given) or not all(0 <= number < 2**20 for numbers in windows for number in numbers):
            return False
        kernel, stride, padding = windows
        pixels, gradient = given["self"].shape[-spatial:], given["grad_output"].shape[-spatial:]
        return min(kernel) > 0 and all(
            _window_count(*sizes, is_ceil=given["ceil_mode"]) == count
            for *sizes, count in zip(pixels, kernel, stride or kernel, padding, gradient, strict=True)
        )

    return holds


def _per_dimension(numbers: Any, spatial: int) -> list[int]:
    return list(numbers) * (spatial if len(numbers) == 1 else 1)


def _window_count(size: int, kernel: int, stride: int, padding: int, *, is_ceil: bool) -> int:
    if stride == 0 or padding > kernel // 2:
        return -1
    room = size + 2 * padding - kernel
    count = -(-room // stride) + 1 if is_ceil else room // stride + 1
    return count - (is_ceil and (count - 1) * stride >= size + padding)


def _padded(spatial: int) -> Rule:
    def holds(given: Arguments) -> bool:
        pixels, gradient, padding = given["self"], given["grad_output"], list(given["padding"])
        rank = pixels.dim()
        if rank not in (spatial + 1, spatial + 2) or gradient.dim() != rank or len(padding) != 2 * spatial:
            return False
        padded = list(pixels.shape)
        for position in range(spatial):
            padded[rank - 1 - position] += padding[2 * position] + padding[2 * position + 1]
        return list(gradient.shape) == padded and min(padded) > 0 and pixels.numel() > 0

    return holds


def _grid_fits(given: Arguments) -> bool:
    source, grid, spatial = given["input"], given["grid"], given["input"].dim() - 2
    if spatial not in (2, 3) or grid.dim() != spatial + 2 or grid.shape[-1] != spatial or source.numel() == 0:
        return False
    shape = (source.shape[0], source.shape[1], *grid.shape[1:-1])
    is_known = given["interpolation_mode"] in (0, 1, 2) and given["padding_mode"] in (0, 1, 2)
    return source.shape[0] == grid.shape[0] and given["grad_output"].shape == shape and is_known


def _classes_fit(given: Arguments) -> bool:
    scores, target = given["self"], given["target"]
    classes = scores.shape[-1] if scores.dim() else 1
    rows = scores.numel() // classes if classes else 0
    is_known = scores.dim() <= 2 and target.numel() == rows and given["reduction"] in (0, 1, 2)
    gradients = given.get("grad_output")
    fits = gradients is None or gradients.numel() == (rows if given["reduction"] == 0 else 1)
    return is_known and fits and _has_size(given.get("weight"), classes) and _in_range(target, classes)


def _labels_fit(given: Arguments) -> bool:
    scores, target, is_target = given["self"], given["target"], given["is_target"]
    classes = scores.shape[-1] if scores.dim() else 1
    rows = scores.numel() // classes if classes else 0
    gradients = given["grad_output"].numel() == (rows if given["reduction"] == 0 else 1)
    same = target.numel() == scores.numel() == is_target.numel() and target.dim() == scores.dim() <= 2
    return same and gradients and given["reduction"] in (0, 1, 2) and _in_range(target, classes, lowest=-1)


def _loss_targets_fit(given: Arguments) -> bool:
    scores, target = given["self"], given["target"]
    if scores.dim() < 1 or scores.numel() == 0 or target.dtype not in (torch.int64, torch.uint8):
        return False
    classes = scores.shape[1 if scores.dim() > 1 else 0]
    rows = (scores.shape[0], *scores.shape[2:]) if scores.dim() > 1 else ()
    reduced = given["reduction"] in (1, 2)
    return (
        tuple(target.shape) == tuple(rows)
        and (given["grad_output"].numel() == 1 if reduced else tuple(given["grad_output"].shape) == tuple(rows))
        and given["total_weight"].numel() >= 1
        and _has_size(given["weight"], classes)
        and _in_range(target, classes, also=given["ignore_index"])
    )


def _rows_fit(given: Arguments) -> bool:
    indices, grad = given["indices"], given["grad_output"]
    count = given["num_weights"]
    is_rows = grad.dim() == indices.dim() + 1 and grad.shape[:-1] == indices.shape and 0 <= count < 2**40
    return is_rows and indices.dtype in (torch.int32, torch.int64) and _in_range(indices, count)


def _bags_fit(given: Arguments) -> bool:
    grad, indices, of_bag = given["grad"], given["indices"], given["offset2bag"]
    if grad.dim() != 2 or indices.dim() != 1 or grad.shape[0] == 0 or given["mode"] not in (0, 1, 2):
        return False
    rows = given["weight"].shape[0] if "weight" in given and given["weight"].dim() == 2 else given.get("num_weights")
    bags = grad.shape[0]
    weights = given.get("per_sample_weights")
    width = given["weight"].shape[1] if "weight" in given and given["weight"].dim() == 2 else grad.shape[1]
    largest = given.get("maximum_indices")
    return (
        rows is not None
        and given["mode"] != 2
        and width == grad.shape[1]
        and _in_range(indices, rows)
        and (of_bag.numel() == 0 or (of_bag.shape == indices.shape and _in_range(of_bag, bags)))
        and _offsets_fit(given.get("offsets"), len(indices), bags)
        and _has_size(given.get("bag_size"), bags)
        and (largest is None or largest.numel() in (0, bags))
        and (weights is None or weights.shape == indices.shape)
    )


def _offsets_fit(offsets: Any, count: int, bags: int) -> bool:
    if offsets is None:
        return True
    if offsets.dim() != 1 or offsets.numel() not in (bags, bags + 1) or not _in_range(offsets, count + 1):
        return False
    return bool((offsets[1:] >= offsets[:-1]).all()) and int(offsets[0]) == 0


def _alignment_fits(given: Arguments) -> bool:
    """CTC: scores are [time, batch, classes], and the labels match the lengths."""
    scores, targets, blank = given["log_probs"], given["targets"], given["blank"]
    if scores.dim() != 3 or targets.dim() not in (1, 2) or not 0 <= blank < scores.shape[2]:
        return False
    times, sequences, classes = scores.shape
    inputs, labels = (_numbers(given[name]) for name in ("input_lengths", "target_lengths"))
    if len(inputs) != sequences or len(labels) != sequences or not all(0 <= each <= times for each in inputs):
        return False
    room = targets.shape[1] if targets.dim() == 2 else None
    fits = all(0 <= each <= (times if room is None else room) for each in labels)
    total = sum(labels) == targets.numel() if room is None else targets.shape[0] == sequences
    integers = targets.dtype in (torch.int32, torch.int64)
    return fits and total and integers and _in_range(targets, classes) and _ctc_gradients_fit(given, sequences, labels)


def _ctc_gradients_fit(given: Arguments, sequences: int, labels: list[int]) -> bool:
    if "grad" not in given:
        return True
    shape = (sequences, given["log_probs"].shape[0], 2 * max(labels, default=0) + 1)
    losses = all(tuple(given[name].shape) == (sequences,) for name in ("grad", "neg_log_likelihood"))
    return losses and tuple(given["log_alpha"].shape) == shape


def _numbers(lengths: Any) -> list[int]:
    return [int(each) for each in (lengths.reshape(-1).tolist() if isinstance(lengths, torch.Tensor) else lengths)]


def _order_fits(given: Arguments) -> bool:
    order, sequence = given["sorter"], given["sorted_sequence"]
    if order is None:
        return True
    return (
        order.shape == sequence.shape
        and order.dtype == torch.int64
        and _in_range(order, max(sequence.shape[-1:], default=0))
    )


def _has_dimensions_to_index(given: Arguments) -> bool:
    return bool(len(given["indices"]) <= given["self"].dim())


def _norms_fit(given: Arguments) -> bool:
    """Weight norm: one magnitude for each slice along the first or the last dimension."""
    prefix = "" if "v" in given else "saved_"
    direction, length, dim = given[f"{prefix}v"], given[f"{prefix}g"], given["dim"]
    rank = direction.dim()
    if rank == 0 or dim not in (0, rank - 1) or direction.numel() == 0:
        return False
    written = [given["grad_w"]] if "grad_w" in given else []
    return (
        all(each.shape == direction.shape for each in written)
        and all(_has_size(each, direction.shape[dim]) for each in (length, given.get("saved_norms")))
        and len({each.dtype for each in (direction, length, *written)}) == 1
    )


def _weights_fit(given: Arguments) -> bool:
    # Along other dimensions, it is composed of operators that check their arguments.
    return given["dim"] not in (0, given["v"].dim() - 1) or _norms_fit(given)


def _windows_fit(given: Arguments) -> bool:
    """Gradients of unfold: the number and the length of the windows follow from the sizes."""
    shape, dim, size, step = list(given["input_sizes"]), given["dim"], given["size"], given["step"]
    rank = max(len(shape), 1)
    if not -rank <= dim < rank or min(shape, default=1) < 0 or size < 0 or step <= 0:
        return False
    if size > (shape[dim] if shape else 1):
        return False
    if shape:
        shape[dim] = (shape[dim] - size) // step + 1
    return tuple(given["grad_in"].shape) == (*shape, size)


def _are_fractions(given: Arguments) -> bool:
    """Only floats are accepted: integers would be divided by a ``beta`` of 0."""
    return all(given[name].is_floating_point() for name in ("grad_output", "self", "target"))


def _is_plain_segmenting(given: Arguments) -> bool:
    return not given["unsafe"]


def _lists_fit(given: Arguments) -> bool:
    """Fused optimizers iterate over several lists of tensors in parallel."""
    lists = [value for value in given.values() if isinstance(value, (list, tuple)) and value]
    shapes = [[tuple(each.shape) for each in tensors] for tensors in lists if isinstance(tensors[0], torch.Tensor)]
    steps = [[()] * len(shapes[0])] if shapes else []
    kinds = {each.dtype for tensors in lists for each in tensors if isinstance(each, torch.Tensor) and each.dim()}
    return len(kinds) <= 1 and all(each in (shapes[0], *steps) for each in shapes)


def _sequences_fit(given: Arguments) -> bool:
    source, lengths = given["input"], given["lengths"]
    if source.dim() < 2 or lengths.dim() != 1 or lengths.dtype != torch.int64 or lengths.numel() == 0:
        return False
    batch, times = source.shape[:2] if given["batch_first"] else (source.shape[1], source.shape[0])
    is_sorted = bool((lengths[1:] <= lengths[:-1]).all())
    return lengths.numel() == batch and is_sorted and _in_range(lengths, times + 1, lowest=1)


def _batches_fit(given: Arguments) -> bool:
    data, sizes = given.get("data", given.get("grad")), given["batch_sizes"]
    if data is None or data.dim() < 1 or sizes.dim() != 1 or sizes.dtype != torch.int64 or sizes.numel() == 0:
        return False
    falling = bool((sizes[1:] <= sizes[:-1]).all()) and int(sizes[-1]) > 0
    return falling and int(sizes.sum()) == data.shape[0] and int(sizes[0]) < 2**31 and _shape_fits(given)


def _shape_fits(given: Arguments) -> bool:
    shape = given.get("input_size")
    if shape is None:
        return True
    leading = given["batch_sizes"]
    times, batch = (shape[1], shape[0]) if given["batch_first"] else (shape[0], shape[1])
    return bool(len(shape) == given["grad"].dim() + 1 and times >= leading.numel() and batch == int(leading[0]))


_NORMS = (
    "native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_no_training",
    "_native_batch_norm_legit_functional", "_batch_norm_no_update", "_batch_norm_with_update_functional",
    "native_batch_norm_backward", "batch_norm_backward",
)  # fmt: skip


def _group_fits(given: Arguments) -> bool:
    """Whether the group has the size that the call states, which determines the results' sizes."""
    group: Any = torch._C._distributed_c10d._resolve_process_group(given["group_name"])
    return bool(group.size() == given["group_size"])


RULES: dict[str, Rule] = {
    "_c10d_functional::all_gather_into_tensor": _group_fits,
    "_c10d_functional::reduce_scatter_tensor": _group_fits,
    **dict.fromkeys(_NORMS, _channels_fit),
    "native_layer_norm_backward": _layer_norm_fits,
    **dict.fromkeys(("native_group_norm", "native_group_norm_backward"), _group_norm_fits),
    **dict.fromkeys(("_fused_rms_norm", "_fused_rms_norm_backward"), _rms_norm_fits),
    **dict.fromkeys(("_softmax_backward_data", "_log_softmax_backward_data"), _softmax_fits),
    **dict.fromkeys(("_fft_r2c", "_fft_c2c", "_fft_c2r"), _transform_fits),
    "lu_unpack": _pivots_fit,
    "_cdist_backward": _distances_fit,
    "_pdist_backward": _pair_distances_fit,
    "_adaptive_avg_pool2d_backward": _pooled("self", "grad_output", 2),
    "_adaptive_avg_pool3d_backward": _pooled("self", "grad_output", 3),
    "adaptive_max_pool2d_backward": _pooled("self", "grad_output", 2, "indices"),
    "adaptive_max_pool3d_backward": _pooled("self", "grad_output", 3, "indices"),
    "fractional_max_pool2d_backward": _pooled("self", "grad_output", 2, "indices"),
    "fractional_max_pool3d_backward": _pooled("self", "grad_output", 3, "indices"),
    "max_pool2d_with_indices_backward": _pooled("self", "grad_output", 2, "indices"),
    "max_pool3d_with_indices_backward": _pooled("self", "grad_output", 3, "indices"),
    **{f"avg_pool{n}d_backward": _averaged(n) for n in (2, 3)},
    **{f"replication_pad{n}d_backward": _padded(n) for n in (1, 2, 3)},
    **{f"reflection_pad{n}d_backward": _padded(n) for n in (1, 2, 3)},
    **dict.fromkeys(("grid_sampler_2d_backward", "grid_sampler_3d_backward"), _grid_fits),
    **dict.fromkeys(("multi_margin_loss", "multi_margin_loss_backward"), _classes_fit),
    "multilabel_margin_loss_backward": _labels_fit,
    **dict.fromkeys(("nll_loss_backward", "nll_loss2d_backward"), _loss_targets_fit),
    "embedding_dense_backward": _rows_fit,
    **dict.fromkeys(
        ("_embedding_bag_backward", "_embedding_bag_dense_backward", "_embedding_bag_per_sample_weights_backward"),
        _bags_fit,
    ),
    **dict.fromkeys(("_ctc_loss", "_ctc_loss_backward", "ctc_loss"), _alignment_fits),
    "searchsorted": _order_fits,
    "segment_reduce": _is_plain_segmenting,
    "smooth_l1_loss_backward": _are_fractions,
    "unfold_backward": _windows_fit,
    "_weight_norm": _weights_fit,
    **dict.fromkeys(("_weight_norm_interface", "_weight_norm_interface_backward"), _norms_fit),
    **dict.fromkeys(("_unsafe_masked_index", "_unsafe_masked_index_put_accumulate"), _has_dimensions_to_index),
    **dict.fromkeys(("_fused_adam", "_fused_adamw", "_fused_sgd", "_fused_adagrad"), _lists_fit),
    "_pack_padded_sequence": _sequences_fit,
    **dict.fromkeys(("_pad_packed_sequence", "_pack_padded_sequence_backward"), _batches_fit),
}
"""By the operator's name, for all overloads."""
