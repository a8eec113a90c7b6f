"""Programs that once failed, as the fuzzer shrank them; each has a name that says what was wrong."""

from tests.fuzz.programs import Leaf, Name, Program, Step

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
}
