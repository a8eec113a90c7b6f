"""The C++ that comes out: readable, and each kernel once."""

import pytest
import torch

from precast.native.targets.cpu.codegen.generate import generate
from precast.native.targets.cpu.codegen.types import identifier, literal
from tests.native.lowering.pipeline import bullet_inputs, lowered, make_entry, open_entries, tracer_bullet
from tests.native.lowering.test_random import random_program

VENDORED = {"pocketfft_hdronly.h"}


def unit(sources, name):
    (text,) = [each.text for each in sources.units if each.name == name]
    return text


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_tracer_bullet_in_cpp(assert_golden, dynamic):
    sources = generate([make_entry(lowered(tracer_bullet, *bullet_inputs(), dynamic=dynamic))])
    suffix = "_dynamic" if dynamic else ""
    assert_golden(f"bullet_kernels{suffix}", unit(sources, "kernels_0.cpp"))
    assert_golden(f"bullet_host{suffix}", unit(sources, "host.cpp"))


def test_columns_are_added_up_side_by_side(assert_golden):
    sources = generate([make_entry(lowered(lambda x: x.sum(0), torch.zeros(500, 70)))])
    assert_golden("column_sum", unit(sources, "kernels_0.cpp"))


def test_softmax_is_one_pass_over_each_row(assert_golden):
    sources = generate([make_entry(lowered(lambda x: x.softmax(-1), torch.zeros(500, 70)))])
    assert_golden("softmax", unit(sources, "kernels_0.cpp"))


def test_bfloat16_is_a_float_between_loading_and_storing(assert_golden):
    program = lowered(lambda x, y: ((x + y) * y).relu(), *(torch.zeros(500, dtype=torch.bfloat16) for _ in range(2)))
    assert_golden("bfloat16", unit(generate([make_entry(program)]), "kernels_0.cpp"))


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_function_runs_over_tensors_of_all_sizes(assert_golden, dynamic):
    inputs = [torch.zeros(size) for size in ((40, 30), (40,), (2, 3, 5), ())]
    suffix = "_dynamic" if dynamic else ""
    program = lowered(lambda *given: tuple(x * given[-1] for x in given[:-1]), *inputs, dynamic=dynamic)
    sources = generate([make_entry(program)])
    assert_golden(f"group_kernels{suffix}", unit(sources, "kernels_0.cpp"))
    assert_golden(f"group_host{suffix}", unit(sources, "host.cpp").partition("_run(")[2].partition("\n}")[0])


def test_norms_of_tensors_of_all_sizes_in_parts(assert_golden):
    program = lowered(lambda *given: torch._foreach_norm(given), torch.zeros(40, 30), torch.zeros(40))
    assert_golden("group_reduction", unit(generate([make_entry(program)]), "kernels_0.cpp"))


WHOLE = torch.zeros(500, dtype=torch.int64)
PROGRAMS = {
    "argmax": (lambda x: x.argmax(1), [torch.zeros(50, 700)]),
    "average_pool": (lambda x: torch.nn.functional.avg_pool2d(x, 3, 2, 1), [torch.zeros(2, 3, 9, 9)]),
    "cat_and_pad": (
        lambda x, y: torch.nn.functional.pad(torch.cat([x.exp(), y], 1), (1, 1)),
        [torch.zeros(50, 7), torch.zeros(50, 9)],
    ),
    "embedding": (lambda w, i: torch.nn.functional.embedding(i, w) * 2, [torch.zeros(9, 70), WHOLE]),
    "floor_divide": (lambda x, y: (x // y, x % 7), [WHOLE, torch.ones_like(WHOLE)]),
    "scatter_add": (
        lambda x, i, y: x.scatter_add(0, i, y.exp()),
        [torch.zeros(9, 70), torch.zeros(50, 70, dtype=torch.int64), torch.zeros(50, 70)],
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_program_in_cpp(assert_golden, name):
    function, inputs = PROGRAMS[name]
    sources = generate([make_entry(lowered(function, *inputs))])
    assert_golden(name, unit(sources, "kernels_0.cpp"))


def test_dropout_draws_in_the_loop_around_it(assert_golden):
    program = random_program(lambda x: torch.nn.functional.dropout(x.exp(), 0.1), torch.zeros(500))
    assert_golden("dropout", unit(generate([make_entry(program)]), "kernels_0.cpp"))


def test_what_follows_a_product_goes_into_its_call(assert_golden):
    inputs = [torch.zeros(70), torch.zeros(50, 30), torch.zeros(30, 70)]
    sources = generate([make_entry(lowered(lambda b, x, w: torch.addmm(b, x, w).tanh(), *inputs))])
    assert_golden("product_and_tanh", unit(sources, "host.cpp"))


def layers(count):
    def run(x, w):
        for _ in range(count):
            x = (x @ w).sin()
        return x

    return run


def test_twelve_equal_layers_give_one_kernel():
    inputs = [torch.zeros(4, 4), torch.zeros(4, 4)]
    sources = generate([make_entry(lowered(layers(12), *inputs))])
    assert unit(sources, "kernels_0.cpp").count("void ") == 1
    assert unit(sources, "host.cpp").count("    kernels::sin(") == 12


def recurrence(x, w):
    state, states = x[0, :, 1:4], []
    for step in range(1, len(x)):
        state = (state @ w).sin() * x[step, :, 1:4].tanh()
        states.append(state)
    return states


def test_steps_of_a_loop_written_out_give_one_kernel():
    sources = generate([make_entry(lowered(recurrence, torch.zeros(9, 4, 5), torch.zeros(3, 3)))])
    assert unit(sources, "kernels_0.cpp").count("void ") == 1
    calls = [line for line in unit(sources, "host.cpp").splitlines() if "    kernels::" in line]
    assert len(calls) == 8
    assert "(mul, arg0_1 + 21)" in calls[0]
    assert "arg0_1 + 161)" in calls[7]


def test_a_kernel_called_from_the_middle_of_a_tensor_computes_what_eager_does(tmp_path):
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(9, 4, 5, generator=generator), torch.randn(3, 3, generator=generator)
    model = open_entries([make_entry(lowered(recurrence, x, w))], tmp_path)
    torch.testing.assert_close([torch.from_dlpack(each) for each in model(x, w)], recurrence(x, w))


def test_entries_share_kernels_but_layouts_do_not():
    same = [lowered(lambda x: x.exp(), torch.zeros(4, 5), name=name) for name in ("one", "two")]
    other = lowered(lambda x: x.exp(), torch.zeros(5, 4), name="three")
    sources = generate([make_entry(program) for program in (*same, other)])
    assert unit(sources, "kernels_0.cpp").count("void ") == 2


def test_dynamic_kernels_are_shared_whatever_their_sizes_are_called():
    programs = [lowered(lambda x: x.exp(), torch.zeros(4, size), name=f"f{size}", dynamic=True) for size in (5, 6)]
    sources = generate([make_entry(program) for program in programs])
    assert unit(sources, "kernels_0.cpp").count("void ") == 1


def test_two_entries_of_one_name_are_refused():
    entry = make_entry(lowered(lambda x: x.exp(), torch.zeros(4)))
    with pytest.raises(AssertionError, match="two entries have one name"):
        generate([entry, entry])


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "f32", "0.1f"),
        (1, "f32", "1.0f"),
        (2**0.5 / 2, "f32", "0.70710677f"),
        (1e300, "f32", "precast::infinity<float>"),
        (float("-inf"), "f64", "-precast::infinity<double>"),
        (float("nan"), "f64", "precast::not_a_number<double>"),
        (1e-45, "f32", "1e-45f"),
        (3, "i64", "int64_t(3)"),
        (-(2**63), "i64", "int64_t((-9223372036854775807 - 1))"),
        (True, "bool", "true"),
    ],
)
def test_literals_have_exactly_their_value(value, dtype, text):
    assert literal(value, dtype) == text


@pytest.mark.parametrize(
    ("name", "text"), [("add.1", "add_1"), ("class", "class_"), ("1st", "_1st"), ("frame", "frame_")]
)
def test_identifiers_stay_close_to_their_names(name, text):
    assert identifier(name) == text


def test_transposed_copies_run_in_tiles(assert_golden):
    sources = generate([make_entry(lowered(lambda x: x.t().contiguous(), torch.zeros(500, 70)))])
    assert_golden("transposed_copy", unit(sources, "kernels_0.cpp"))


def test_generated_code_includes_its_own_small_headers_and_none_of_torchs():
    inputs = [torch.zeros(2, 3, 8, 8), torch.zeros(4, 3, 3, 3), torch.zeros(4)]
    sources = generate([make_entry(lowered(lambda x, w, b: torch.conv2d(x, w, b).softmax(1), *inputs))])
    ours = {header.name for header in sources.headers}
    included = {
        line.split()[1].strip('"<>')
        for each in (*sources.units, *sources.headers)
        for line in each.text.splitlines()
        if line.startswith("#include")
    }
    assert ours & included
    assert not [name for name in included if name.startswith(("torch", "ATen", "c10"))]
    assert all(len(header.text.splitlines()) < 500 for header in sources.headers if header.name not in VENDORED)
