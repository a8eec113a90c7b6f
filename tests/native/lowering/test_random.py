"""Random numbers of compiled programs: distributions, independence, and that nothing but the seed decides them."""

import math

import pytest
import torch
from scipy import stats

from precast.native.loops.interpreter import interpret, random_bits
from precast.native.loops.program import Kernel
from precast.native.random import draw_from_streams, seed_as_input
from precast.native.rules import lower_graph
from precast.native.targets.cpu.passes import fuse
from tests.native.lowering.pipeline import make_entry, open_entries, trace

COUNT = 20000
SEED = torch.tensor(1234567890123)
PROBABILITIES = torch.linspace(0, 1, COUNT)
WEIGHTS = torch.tensor([[0.1, 0.0, 0.6, 0.3], [2.0, 2.0, 0.0, 4.0]])

# Each takes a tensor of COUNT ones, but for those in GIVEN.
CASES = {
    "rand": lambda x: torch.rand(COUNT),
    "rand_again": lambda x: (torch.rand(COUNT), torch.rand(COUNT))[1],
    "rand_double": lambda x: torch.rand(COUNT, dtype=torch.float64),
    "rand_half": lambda x: torch.rand(COUNT, dtype=torch.float16),
    "rand_bfloat16": lambda x: torch.rand(COUNT, dtype=torch.bfloat16),
    "rand_transposed": lambda x: torch.rand_like(x.reshape(100, -1).t()),
    "uniform": lambda x: torch.empty(COUNT).uniform_(-3, 5),
    "randn": lambda x: torch.randn(COUNT),
    "randn_double": lambda x: torch.randn(COUNT, dtype=torch.float64),
    "normal": lambda x: torch.normal(x * 0 + 2, 3.0),
    "log_normal": lambda x: torch.empty(COUNT).log_normal_(0.5, 0.25),
    "exponential": lambda x: torch.empty(COUNT).exponential_(2),
    "cauchy": lambda x: torch.empty(COUNT).cauchy_(1, 2),
    "geometric": lambda x: torch.empty(COUNT).geometric_(0.3),
    "randint": lambda x: torch.randint(-7, 13, (COUNT,)),
    "randint_wide": lambda x: torch.randint(-(2**62), 2**62, (COUNT,)),
    "randint_widest": lambda x: torch.randint(-(2**63), 2**63 - 1, (COUNT,)),
    "random_half": lambda x: torch.empty(COUNT, dtype=torch.float16).random_(),
    "randperm": lambda x: torch.randperm(COUNT),
    "bernoulli": lambda x: torch.empty(COUNT).bernoulli_(0.2),
    "bernoulli_each": torch.bernoulli,
    "dropout": lambda x: torch.nn.functional.dropout(x * 0 + 1, 0.3),
    "dropout_all": lambda x: torch.ops.aten.native_dropout(x, 1.0, True)[0],
    "rrelu": lambda x: torch.ops.aten.rrelu_with_noise_functional(-x, x, 0.2, 0.6, True)[0],
    "choose": lambda weights: torch.multinomial(weights.repeat(COUNT // 2, 1), 2),
    "choose_again": lambda weights: torch.multinomial(weights, COUNT // 2, replacement=True),
}
GIVEN = {"bernoulli_each": PROBABILITIES, "choose": WEIGHTS, "choose_again": WEIGHTS}


def given(name):
    return GIVEN.get(name, torch.ones(COUNT))


def random_program(function, *inputs, name="main"):
    module = seed_as_input(draw_from_streams(trace(torch.func.functionalize(function), inputs), "cpu"))
    return lower_graph(module, name=name, fallbacks=False)


@pytest.fixture(scope="module")
def programs():
    return {name: random_program(function, given(name), name=name) for name, function in CASES.items()}


@pytest.fixture(scope="module")
def model(programs, tmp_path_factory):
    return open_entries(list(map(make_entry, programs.values())), tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def draw(model):
    """``draw(name)``: what the case gives for a seed."""
    return lambda name, seed=SEED: model[name](given(name), seed)[0]


def assert_distributed(drawn, distribution):
    """Kolmogorov–Smirnov: such a sample is not one in a thousand. Seeds are fixed, so this does not fail by chance."""
    assert stats.kstest(drawn.double().flatten().numpy(), distribution.cdf).pvalue > 1e-3


def test_known_answers_of_philox():
    """From the paper's own test vectors; a counter's third and fourth word are the stream's number."""
    zero = random_bits(*(torch.tensor(0),) * 3)
    ones = random_bits(*(torch.tensor(-1),) * 3)
    assert [int(zero) & 0xFFFFFFFF, int(zero) >> 32 & 0xFFFFFFFF] == [0x6627E8D5, 0xE169C58D]
    assert [int(ones) & 0xFFFFFFFF, int(ones) >> 32 & 0xFFFFFFFF] == [0x408F276D, 0x41C83B0E]


EXACT = [
    "rand", "rand_double", "rand_half", "rand_bfloat16", "rand_transposed", "uniform", "randint", "randint_wide",
    "randint_widest", "random_half", "randperm", "bernoulli", "bernoulli_each", "dropout", "choose_again",
]  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_gives_the_same_numbers(draw, programs, name):
    (expected,) = interpret(programs[name], [given(name), SEED])
    if name in EXACT:
        assert torch.equal(draw(name), expected)
    else:
        torch.testing.assert_close(draw(name), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_one_seed_gives_one_sequence_whatever_the_threads(draw, name):
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = draw(name)
        torch.set_num_threads(3)
        assert torch.equal(draw(name), alone)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("name", [name for name in CASES if name != "dropout_all"])
def test_another_seed_gives_another_sequence(draw, name):
    assert not torch.equal(draw(name), draw(name, SEED + 1))


DISTRIBUTIONS = {
    "rand": stats.uniform(),
    "rand_double": stats.uniform(),
    "rand_transposed": stats.uniform(),
    "uniform": stats.uniform(-3, 8),
    "randn": stats.norm(),
    "randn_double": stats.norm(),
    "normal": stats.norm(2, 3),
    "log_normal": stats.lognorm(0.25, scale=math.exp(0.5)),
    "exponential": stats.expon(scale=0.5),
    "cauchy": stats.cauchy(1, 2),
    "randint_wide": stats.uniform(-(2**62), 2**63),
    "randint_widest": stats.uniform(-(2**63), 2**64),
    "rrelu": stats.uniform(-0.6, 0.4),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distribution(draw, name):
    assert_distributed(draw(name), DISTRIBUTIONS[name])


@pytest.mark.parametrize("name", ["rand", "rand_double", "rand_half", "rand_bfloat16"])
def test_uniform_numbers_are_below_one(draw, name):
    drawn = draw(name)
    assert drawn.min() >= 0
    assert drawn.max() < 1


def assert_frequencies(drawn, expected):
    """Chi squared, for counts of `expected` (value → probability)."""
    counts = [int((drawn == value).sum()) for value in expected]
    assert sum(counts) == drawn.numel()
    sizes = [probability * drawn.numel() for probability in expected.values()]
    assert stats.chisquare(counts, sizes).pvalue > 1e-3


def test_whole_numbers_are_equally_frequent(draw):
    assert_frequencies(draw("randint"), dict.fromkeys(range(-7, 13), 1 / 20))


def test_geometric_distribution(draw):
    drawn = draw("geometric").clamp(max=15)
    expected = {tries: stats.geom(0.3).pmf(tries) for tries in range(1, 15)}
    assert_frequencies(drawn, {**expected, 15: stats.geom(0.3).sf(14)})


def test_bernoulli_frequency(draw):
    assert_frequencies(draw("bernoulli"), {0: 0.8, 1: 0.2})


def test_bernoulli_follows_each_probability(draw):
    drawn = draw("bernoulli_each").reshape(20, -1).mean(1)
    torch.testing.assert_close(drawn, PROBABILITIES.reshape(20, -1).mean(1), atol=0.05, rtol=0)


def test_bernoulli_refuses_what_is_no_probability(tmp_path):
    model = open_entries([make_entry(random_program(torch.bernoulli, torch.ones(3)))], tmp_path)
    with pytest.raises(RuntimeError, match="p_in"):
        model["main"](torch.tensor([0.5, 1.5, 0.5]), SEED)


def test_dropout_keeps_the_right_share_and_scales_it(draw):
    drawn = draw("dropout")
    assert_frequencies((drawn > 0).int(), {0: 0.3, 1: 0.7})
    assert drawn.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert not draw("dropout_all").any()


def test_a_permutation_holds_every_number_once_and_in_no_order(draw):
    drawn = draw("randperm")
    assert torch.equal(drawn.sort().values, torch.arange(COUNT))
    assert abs(stats.spearmanr(range(COUNT), drawn.numpy()).statistic) < 0.03


def test_weighted_choice_without_replacement(draw):
    first, second = draw("choose")[::2].unbind(1)
    assert_frequencies(first, {0: 0.1, 2: 0.6, 3: 0.3})
    assert not (first == second).any()


def test_weighted_choice_with_replacement(draw):
    drawn = draw("choose_again")
    assert_frequencies(drawn[0], {0: 0.1, 2: 0.6, 3: 0.3})
    assert_frequencies(drawn[1], {0: 0.25, 1: 0.25, 3: 0.5})


def test_operators_neighbours_and_seeds_are_independent(draw):
    drawn = draw("rand")
    others = [draw("rand_again"), draw("rand", SEED + 1), drawn.roll(1), drawn.roll(100), draw("randn").abs()]
    for other in others:
        assert abs(stats.pearsonr(drawn.numpy(), other.numpy()).statistic) < 0.03
        table = torch.histogramdd(torch.stack([drawn, other / other.max()], 1), bins=[8, 8]).hist
        kept = table[:, table.sum(0) > 100]
        assert stats.chi2_contingency(kept.numpy()).pvalue > 1e-3


def test_dropout_is_one_loop_with_what_surrounds_it():
    program = fuse(random_program(lambda x: torch.nn.functional.dropout(x.exp(), 0.1) + x, torch.ones(8, 16)))
    (kernel,) = program.steps
    assert isinstance(kernel, Kernel)
