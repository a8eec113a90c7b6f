"""Programs that once failed, as the fuzzer shrank them; each has a name that says what was wrong."""

from tests.fuzz.programs import Code, Leaf, Name, Program, Step

LSTM = (
    Name("x0"), [Name("x1"), Name("x2")], [Name("self.w0"), Name("self.w1"), Name("self.w2"), Name("self.w3")], True, 1,
    0.0, False, False, False,
)  # fmt: skip
"""Operands of a layer of one direction."""

FOUND: dict[str, Program] = {
    # An epilogue of a cropped result was written as if it were whole.
    "cropped_depthwise_convolution": Program(
        (Leaf("x0", "input", (2, 96, 16)), Leaf("w1", "parameter", (96, 1, 4))),
        (
            Step(("v0",), "F.conv1d", (Name("x0"), Name("self.w1")), (("padding", 3), ("groups", 96))),
            Step(("v1",), "[]", (Name("v0"), ..., slice(None, 16))),
            Step(("v2",), "F.silu", (Name("v1"),)),
        ),
        ("v2",),
    ),
    "half_of_a_product": Program(
        (Leaf("x0", "input", (2, 24, 2)), Leaf("w1", "parameter", (8, 2))),
        (
            Step(("v0",), "F.linear", (Name("x0"), Name("self.w1"))),
            Step(("v1", "v2"), ".chunk", (Name("v0"), 2, -1)),
            Step(("v3",), "*", (Name("v1"), 3)),
        ),
        ("v3",),
    ),
    # A range of no elements consists of ranges of no elements, without end.
    "loops_over_nothing_are_not_cut": Program(
        (
            Leaf("x0", "input", (2, 17, 16), layout="transposed"),
            Leaf("w2", "parameter", (51, 17)),
            Leaf("w20", "parameter", (16, 3, 3)),
        ),
        (
            Step(("v3",), "F.linear", (Name("x0"), Name("self.w2"))),
            Step(("v4",), ".reshape", (Name("v3"), 2, 1, 16, 51)),
            Step(("v17",), "[]", (Name("v4"), slice(None), slice(None, 0))),
            Step(("v18",), ".flatten", (Name("v17"), 0, 1)),
            Step(("v21",), "F.conv_transpose1d", (Name("v18"), Name("self.w20")), (("stride", 2), ("padding", 1))),
        ),
        ("v21", "v17"),
    ),
    # Torch keeps the input's shape, where the routine read weights of four channels: a segmentation fault.
    "convolution_without_channels": Program(
        (Leaf("x0", "input", (3, 0, 1)), Leaf("w1", "parameter", (4, 0, 5))),
        (Step(("v0",), "F.conv1d", (Name("x0"), Name("self.w1")), (("padding", "same"),)),),
        ("v0",),
    ),
    # Torch's own decomposition of the operator lies otherwise than the operator.
    "log_sigmoid_of_rows_that_lie_across": Program(
        (Leaf("x0", "input", (3, 2, 5), layout="transposed"),),
        (Step(("v0",), "F.logsigmoid", (Name("x0"),)),),
        ("v0",),
    ),
    "rolled_channels_last": Program(
        (Leaf("x0", "input", (2, 2, 1, 2), layout="channels_last"),),
        (Step(("v0",), ".roll", (Name("x0"), 1, 0)),),
        ("v0",),
    ),
    # A stride of a dimension of size 1 decides how a product is laid out.
    "products_along_a_size_of_one": Program(
        (Leaf("w0", "parameter", (1, 2)), Leaf("w1", "parameter", (1, 2)), Leaf("x0", "input", (3, 1, 1))),
        (
            Step(("v0",), "torch.einsum", ("bij,jk->bki", Name("x0"), Name("self.w0"))),
            Step(("v1",), "torch.einsum", ("bij,jk->bki", Name("v0"), Name("self.w1"))),
        ),
        ("v1",),
    ),
    "indices_sorted_along_a_size_of_one": Program(
        (Leaf("x0", "input", (1, 8, 2)), Leaf("w0", "parameter", (2, 2, 3))),
        (
            Step(("v0",), ".unfold", (Name("x0"), 1, 1, 1)),
            Step(("v1", "v2"), ".sort", (Name("v0"), 0)),
            Step(("v3",), ".to", (Name("v2"), Code("torch.float32"))),
            Step(("v4",), ".flatten", (Name("v3"), 0, 1)),
            Step(("v5",), "F.conv_transpose1d", (Name("v4"), Name("self.w0"), None)),
        ),
        ("v5",),
    ),
    "a_view_of_a_convolution_is_returned": Program(
        (
            Leaf("w0", "parameter", (5, 3, 3, 4)),
            Leaf("b0", "buffer", (5,)),
            Leaf("b1", "buffer", (5,)),
            Leaf("x0", "input", (1, 3, 16, 6)),
        ),
        (
            Step(("v0",), "F.conv2d", (Name("x0"), Name("self.w0"), None)),
            Step(("v1",), ".unsqueeze", (Name("v0"), 0)),
            Step(("v2",), ".square", (Name("self.b1"),)),
            Step(("v3",), "F.batch_norm", (Name("v0"), Name("self.b0"), Name("v2"), None, None, False)),
        ),
        ("v1", "v3"),
    ),
    # A remainder by zero, of no elements.
    "nothing_is_taken_along_a_dimension": Program(
        (Leaf("x0", "input", (1, 1, 1, 0)),),
        (
            Step(("v0",), ".argsort", (Name("x0"), 0)),
            Step(("v1",), "torch.take_along_dim", (Name("x0"), Name("v0"), -1)),
        ),
        ("v1",),
    ),
    "nothing_is_added_at_places": Program(
        (
            Leaf("x0", "input", (0, 1)),
            Leaf("x1", "input", (1,), dtype="int64", high=0),
            Leaf("x2", "input", (1, 1)),
        ),
        (Step(("v0",), ".index_add", (Name("x0"), 0, Name("x1"), Name("x2"))),),
        ("v0",),
    ),
    "groups_of_nothing": Program(
        (Leaf("x0", "input", (1, 1, 1, 0)),),
        (Step(("v0",), "F.group_norm", (Name("x0"), 1, None, None)),),
        ("v0",),
    ),
    "a_transposed_convolution_that_is_all_padding": Program(
        (Leaf("w0", "parameter", (1, 1, 2)), Leaf("x0", "input", (2, 1, 1))),
        (Step(("v0",), "F.conv_transpose1d", (Name("x0"), Name("self.w0"), None), (("padding", 1),)),),
        ("v0",),
    ),
    # The backward was given a product of two sizes and spoke of both.
    "sizes_that_the_backward_cannot_tell": Program(
        (
            Leaf("x0", "input", (238,), dtype="int64", high=8),
            Leaf("w0", "parameter", (238, 1)),
            Leaf("x1", "input", (14, 17, 8), grows=True),
        ),
        (
            Step(("v0",), ".flatten", (Name("x1"), 0, 1)),
            Step(("v1",), "F.nll_loss", (Name("v0"), Name("x0")), (("reduction", "none"),)),
            Step(("v2",), "@", (Name("v1"), Name("self.w0"))),
        ),
        ("v2",),
        other_size=1,
    ),
    # Conditions on sizes were printed with a name that their check did not know.
    "sizes_that_are_scaled": Program(
        (Leaf("x0", "input", (2, 5, 4, 3), grows=True),),
        (Step(("v0",), "F.interpolate", (Name("x0"),), (("scale_factor", 1.5),)),),
        ("v0",),
        other_size=4,
    ),
    "dimensions_that_are_none": Program(
        (Leaf("x0", "input", (1, 1, 1, 1)),),
        (Step(("v0",), "F.softmax", (Name("x0"), 4)),),
        ("v0",),
    ),
    "dropout_that_is_off": Program(
        (Leaf("x0", "input", (2, 4), grows=True),),
        (Step(("v0",), "F.dropout", (Name("x0"), 0.5, False)),),
        ("v0",),
        other_size=4,
    ),
    # The verifier did not see that two subscripts together keep iterations apart.
    "read_at_places_of_what_is_written_and_normalized": Program(
        (
            Leaf("c0", "constant", (3,), dtype="int64", high=5),
            Leaf("x0", "input", (2, 1, 5)),
            Leaf("x1", "input", (2, 8, 5)),
        ),
        (
            Step((), "[]=", (Name("x1"), slice(None), slice(None, 5), Name("x0"))),
            Step(("v0",), "F.group_norm", (Name("x1"), 2, None, None)),
            Step(("v1",), "[]", (Name("x1"), ..., Name("self.c0"))),
        ),
        ("v0", "v1"),
    ),
    # Eager adds the bias in place where it does not flatten.
    "a_bias_of_another_type": Program(
        (
            Leaf("x0", "input", (2, 2, 3, 4), layout="channels_last"),
            Leaf("w0", "parameter", (5, 4)),
            Leaf("w1", "parameter", (5,), dtype="float64"),
        ),
        (Step(("v0",), "F.linear", (Name("x0"), Name("self.w0"), Name("self.w1"))),),
        ("v0",),
    ),
    # A guard speaks of a size that neither the subscript nor the dimension does.
    "averages_of_halves_of_a_size_that_changes": Program(
        (Leaf("x0", "input", (2, 2, 2, 4), grows=True),),
        (
            Step(("v0",), "F.glu", (Name("x0"), -1)),
            Step(("v1",), ".flatten", (Name("v0"), 0, 1)),
            Step(("v2",), "F.avg_pool1d", (Name("v1"), 2, 1, 0, False, False)),
        ),
        ("v2",),
        other_size=7,
    ),
    # Torch's rule refuses it, and so does eager where it has few rows.
    "transposed_convolution_of_few_rows_to_nothing": Program(
        (Leaf("x0", "input", (3, 2, 2), grows=True), Leaf("w0", "parameter", (2, 1, 1))),
        (Step(("v0",), "F.conv_transpose1d", (Name("x0"), Name("self.w0"), None), (("padding", 1),)),),
        ("v0",),
        other_size=4,
    ),
    "transposed_convolution_of_many_rows_to_nothing": Program(
        (Leaf("x0", "input", (48, 2, 2), grows=True), Leaf("w0", "parameter", (2, 1, 1))),
        (Step(("v0",), "F.conv_transpose1d", (Name("x0"), Name("self.w0"), None), (("padding", 1),)),),
        ("v0",),
        other_size=64,
    ),
    # Eager refuses as much of more than nothing, and only in float64.
    "transposed_convolution_of_nothing_to_nothing": Program(
        (
            Leaf("x0", "input", (0, 3, 1, 1), dtype="float64"),
            Leaf("w0", "parameter", (3, 4, 2, 2), dtype="float64"),
        ),
        (Step(("v0",), "F.conv_transpose2d", (Name("x0"), Name("self.w0"), None), (("stride", 2), ("padding", 1))),),
        ("v0",),
    ),
    "gradients_of_means_of_nothing": Program(
        (Leaf("x0", "input", (3, 0)), Leaf("x1", "input", (3, 0)), Leaf("w0", "parameter", ())),
        (
            Step(("v0",), "F.mse_loss", (Name("x0"), Name("x1"))),
            Step(("v1",), "F.huber_loss", (Name("x0"), Name("x1"))),
            Step(("v2",), "F.smooth_l1_loss", (Name("x0"), Name("x1"))),
            Step(("v3",), "*", (Name("v0"), Name("self.w0"))),
        ),
        ("v1", "v2", "v3"),
    ),
    # Sizes of 1 do not say in which order dimensions lie.
    "rows_of_a_channels_last_image_of_one_channel": Program(
        (
            Leaf("x0", "input", (1, 1, 7, 4), layout="channels_last"),
            Leaf("c0", "constant", (3,), dtype="int64", high=7),
        ),
        (Step(("v0",), "[]", (Name("x0"), slice(None), slice(None), Name("self.c0"))),),
        ("v0",),
    ),
    "transposed_convolution_of_a_single_step": Program(
        (
            Leaf("x0", "input", (2, 8, 8, 1), layout="transposed", grows=True),
            Leaf("w0", "parameter", (8, 4, 3)),
        ),
        (
            Step(("v0",), ".flatten", (Name("x0"), 0, 1)),
            Step(("v1",), "F.conv_transpose1d", (Name("v0"), Name("self.w0"), None), (("groups", 8),)),
        ),
        ("v1",),
        other_size=7,
    ),
    # Torch 2.12 and earlier trace both with other sizes.
    "norm_over_a_last_dimension_of_size_1": Program(
        (Leaf("x0", "input", (3, 7, 1)),),
        (Step(("v0",), "torch.linalg.vector_norm", (Name("x0"), 2, -1, False)),),
        ("v0",),
    ),
    "last_states_of_a_layer_over_a_size_that_changes": Program(
        (
            Leaf("x0", "input", (3, 2, 5), grows=True),
            Leaf("x1", "input", (1, 2, 4)),
            Leaf("x2", "input", (1, 2, 4)),
            Leaf("w0", "parameter", (16, 5)),
            Leaf("w1", "parameter", (16, 4)),
            Leaf("w2", "parameter", (16,)),
            Leaf("w3", "parameter", (16,)),
        ),
        (Step(("v0", "v1", "v2"), "torch.lstm", LSTM),),
        ("v0", "v1", "v2"),
        other_size=4,
    ),
    "layer_over_steps_without_features": Program(
        (
            Leaf("x0", "input", (3, 2, 0), dtype="int64", grows=True),
            Leaf("x1", "input", (1, 2, 4)),
            Leaf("x2", "input", (1, 2, 4)),
            Leaf("w0", "parameter", (16, 0)),
            Leaf("w1", "parameter", (16, 4)),
            Leaf("w2", "parameter", (16,)),
            Leaf("w3", "parameter", (16,)),
        ),
        (
            Step(("x0",), ".to", (Name("x0"), Code("torch.float32"))),
            Step(("v0", "v1", "v2"), "torch.lstm", LSTM),
        ),
        ("v0", "v1", "v2"),
        other_size=4,
    ),
    "attention_over_vectors_without_elements": Program(
        (Leaf("x0", "input", (2, 4, 3, 0)),),
        (Step(("v0",), "F.scaled_dot_product_attention", (Name("x0"), Name("x0"), Name("x0"))),),
        ("v0",),
    ),
    "a_maximum_of_sums_that_the_backward_adds_up_in_another_order": Program(
        (
            Leaf("w5", "parameter", (3, 3, 3)),
            Leaf("c9", "constant", (2, 1, 11)),
            Leaf("y4", "input", (2, 3, 11)),
        ),
        (
            Step(("v6",), "F.conv_transpose1d", (Name("y4"), Name("self.w5"), None)),
            Step(("v8",), ".sum", (Name("y4"), 1, True)),
            Step(("v10",), "torch.cat", ([Name("v8"), Name("self.c9")], -1)),
            Step(("v11",), ".amax", (Name("v8"),)),
        ),
        ("v6", "v10", "v11"),
    ),
    "no_images_are_resized": Program(
        (Leaf("x0", "input", (0, 1, 1)),),
        (Step(("v0",), "F.interpolate", (Name("x0"),), (("scale_factor", 2),)),),
        ("v0",),
    ),
    # Whether there are elements to add to is known when the program runs.
    "nothing_of_a_size_that_changes_is_added_at_places": Program(
        (
            Leaf("x0", "input", (2, 1, 3)),
            Leaf("x1", "input", (1,), dtype="int64", high=0),
            Leaf("x2", "input", (2, 1, 1)),
        ),
        (
            Step(("v0",), "[]", (Name("x0"), slice(None), slice(None), slice(-2, 1, 2))),
            Step(("v1",), ".index_add", (Name("v0"), 2, Name("x1"), Name("x2"))),
        ),
        ("v1",),
        other_size=7,
    ),
    "nothing_is_flattened_and_padded": Program(
        (Leaf("x0", "input", (2, 2, 0)),),
        (Step(("v0",), ".flatten", (Name("x0"), 0, 1)), Step(("v1",), "F.pad", (Name("v0"), [0, 1]))),
        ("v1",),
    ),
    # Eager looks at no types where it has nothing to multiply.
    "a_convolution_of_nothing_with_another_type": Program(
        (Leaf("x0", "input", (0, 1, 1)), Leaf("w0", "parameter", (1, 1, 1), dtype="float16")),
        (Step(("v0",), "F.conv1d", (Name("x0"), Name("self.w0"), None)),),
        ("v0",),
    ),
    # Eager's elementwise operators find strides for sizes of 1 that decide how what comes next is laid out.
    "an_empty_part_of_a_single_row": Program(
        (Leaf("x0", "input", (1, 2), layout="transposed"),),
        (Step(("v0",), "*", (Name("x0"), 0)), Step(("v1",), "[]", (Name("v0"), slice(1, None)))),
        ("v1", "v0"),
    ),
    "a_convolution_of_clamped_columns": Program(
        (Leaf("x0", "input", (2, 5, 1, 1)), Leaf("w0", "parameter", (5, 1, 3, 1, 1))),
        (
            Step(("v0",), ".transpose", (Name("x0"), 1, 2)),
            Step(("v1",), ".clamp", (Name("v0"),), (("max", 3),)),
            Step(("v2",), ".unsqueeze", (Name("v1"), -1)),
            Step(("v3",), "F.conv3d", (Name("v2"), Name("self.w0"), None), (("stride", (2, 1, 2)),)),
        ),
        ("v3",),
    ),
    "sums_of_channels_last_pixels_side_by_side": Program(
        (Leaf("x0", "input", (1, 2, 1, 1), layout="channels_last"),),
        (Step(("v0",), "+", (Name("x0"), Name("x0"))), Step(("v1",), "torch.cat", ([Name("v0"), Name("v0")], -1))),
        ("v1",),
    ),
    "a_norm_of_doubled_columns": Program(
        (Leaf("x0", "input", (1, 2, 2, 1)),),
        (
            Step(("v0",), ".transpose", (Name("x0"), 1, 2)),
            Step(("v1",), "*", (2, Name("v0"))),
            Step(("v2",), "F.rms_norm", (Name("v1"), (2, 1), None)),
        ),
        ("v2",),
    ),
    "a_convolution_of_a_channel_that_lies_across": Program(
        (Leaf("x0", "input", (1, 1, 2), layout="transposed"), Leaf("w0", "parameter", (2, 1, 1))),
        (
            Step(("v0",), "-", (Name("x0"), 0)),
            Step(("v1",), "F.conv1d", (Name("v0"), Name("self.w0"), None)),
        ),
        ("v1",),
    ),
    "powers_of_a_number_and_logarithms_of_rows_that_lie_across": Program(
        (Leaf("x0", "input", (2, 3, 4), layout="transposed"), Leaf("x1", "input", (2, 3, 4))),
        (
            Step(("v0",), "torch.pow", (2, Name("x0"))),
            Step(("v1",), "torch.xlogy", (Name("x0"), Name("x1"))),
            Step(("v2",), "torch.special.xlog1py", (Name("x0"), Name("x1"))),
        ),
        ("v0", "v1", "v2"),
    ),
    "patches_of_pixels_that_lie_across": Program(
        (Leaf("x0", "input", (2, 2), layout="transposed"),),
        (
            Step(("v0",), ".unsqueeze", (Name("x0"), -1)),
            Step(("v1",), ".unsqueeze", (Name("v0"), -1)),
            Step(("v2",), "F.unfold", (Name("v1"), 1, 1, 0, 1)),
        ),
        ("v2",),
    ),
    # Torch's decomposition for sizes that are symbols forgets that eager copies what is not padded as it lies.
    "padded_by_nothing_with_a_size_that_changes": Program(
        (Leaf("x0", "input", (2, 1, 2, 2), layout="transposed", grows=True),),
        (Step(("v0",), "F.pad", (Name("x0"), [0, 0])), Step(("v1",), "F.pad", (Name("x0"), [0, -1]))),
        ("v0", "v1"),
        other_size=6,
    ),
    "one_of_several_parts_of_what_is_shown_again": Program(
        (Leaf("x0", "input", (1, 1, 2)),),
        (
            Step(("v0",), ".exp", (Name("x0"),)),
            Step(("v1",), ".expand", (Name("v0"), 2, 1, 1, 2)),
            Step(("v2", "v3"), ".unbind", (Name("v1"), -1)),
            Step(("v4", "v5"), ".chunk", (Name("v1"), 2, -1)),
        ),
        ("v2", "v5"),
    ),
    # Whether windows leave gaps depends on a size that is a symbol.
    "windows_over_a_size_that_changes": Program(
        (Leaf("x0", "input", (2, 2, 2), grows=True),),
        (Step(("v0",), "F.hardsigmoid", (Name("x0"),)), Step(("v1",), ".unfold", (Name("v0"), 1, 2, 2))),
        ("v1",),
        other_size=4,
    ),
    # Torch's own gradient has another shape, which autograd refuses.
    "gradients_of_pixels_that_are_not_there": Program(
        (Leaf("x0", "input", (1, 1, 0)),),
        (Step(("v0",), "F.pixel_unshuffle", (Name("x0"), 2)),),
        ("v0",),
    ),
    # The convolution wrote channels last, and torch went by the memory of what was row by row in eager.
    "elements_of_a_convolution_by_their_place_in_memory": Program(
        (Leaf("x0", "input", (1, 2, 2)), Leaf("w0", "parameter", (2, 2, 1))),
        (
            Step(("v0",), "F.conv1d", (Name("x0"), Name("self.w0"), None)),
            Step(("v1",), ".as_strided", (Name("v0"), (2, 2), (1, 1), 0)),
        ),
        ("v1",),
        other_size=6,
    ),
    # The loop interpreter read elements for a loop that has no iterations.
    "roll_of_nothing_along_a_size_that_changes": Program(
        (Leaf("x0", "input", (2, 2), grows=True),),
        (
            Step(("v0",), "*", (Name("x0"), 2)),
            Step(("v1",), "[]", (Name("v0"), slice(2, 1, 3))),
            Step(("v2",), ".roll", (Name("v1"), 2, 0)),
        ),
        ("v0", "v2"),
        other_size=6,
    ),
    # The weight's backward is given sizes as their minimum alone.
    "sizes_of_which_only_the_smaller_is_seen": Program(
        (Leaf("x0", "input", (2, 2, 2), dtype="float64", grows=True), Leaf("w0", "parameter", (1, 1), dtype="float64")),
        (
            Step(("v0",), ".diagonal", (Name("x0"), 0, 0, -1)),
            Step(("v1",), ".unsqueeze", (Name("v0"), -1)),
            Step(("v2",), "F.linear", (Name("v1"), Name("self.w0"), None)),
        ),
        ("v2",),
        other_size=7,
    ),
    # The verifier did not know the range of the rows that are looked up.
    "a_product_that_is_also_resized": Program(
        (
            Leaf("x0", "input", (2, 2, 2), dtype="float16"),
            Leaf("w0", "parameter", (1, 2), dtype="float16"),
            Leaf("w1", "parameter", (1,), dtype="float16"),
        ),
        (
            Step(("v0",), "F.linear", (Name("x0"), Name("self.w0"), Name("self.w1"))),
            Step(("v1",), ".unsqueeze", (Name("v0"), 0)),
            Step(("v2",), "F.interpolate", (Name("v1"), (5, 4))),
        ),
        ("v2", "v0"),
    ),
    "a_transposed_convolution_of_no_pixels": Program(
        (Leaf("x0", "input", (0, 1, 1, 0)), Leaf("w0", "parameter", (1, 1, 1, 1))),
        (Step(("v0",), "F.conv_transpose2d", (Name("x0"), Name("self.w0"), None)),),
        ("v0",),
    ),
    # What one product took along as an operand was the result of another, which then went on growing after it.
    "a_product_that_became_an_operand_of_another": Program(
        (
            Leaf("w0", "parameter", (16,)),
            Leaf("w1", "parameter", (16, 1)),
            Leaf("x0", "input", (3, 1)),
        ),
        (
            Step(("v0",), ".mean", (Name("x0"), -1, True)),
            Step(("v1",), "+", (Name("x0"), Name("v0"))),
            Step(("v2",), "F.linear", (Name("x0"), Name("self.w1"), Name("self.w0"))),
            Step(("v3",), ".flatten", (Name("v1"), 0, 1)),
            Step(("v4",), ".transpose", (Name("v1"), -1, -2)),
            Step(("v5",), "@", (Name("v1"), Name("v4"))),
            Step(("v6",), "torch.sigmoid", (Name("v5"),)),
        ),
        ("v2", "v3", "v6"),
    ),
    "a_product_of_nothing_turned_round": Program(
        (Leaf("w0", "parameter", (6,)), Leaf("w1", "parameter", (6, 0)), Leaf("x0", "input", (1, 3, 17, 0))),
        (
            Step(("v0",), ".flip", (Name("x0"), -1)),
            Step(("v1",), "F.linear", (Name("v0"), Name("self.w1"), Name("self.w0"))),
        ),
        ("v1",),
    ),
}
