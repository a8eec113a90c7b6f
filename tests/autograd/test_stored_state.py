"""Tensors that a module keeps in Python's state while it runs are put where eager puts them."""

import copy
import functools
import pickle
import threading
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch
from torch import nn

import precast
from precast import aot_function, aot_module
from precast.compilers import nop
from precast.errors import StateMutationError
from tests.autograd.stored_state import assert_same_calls, compile_strictly


class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.kept = None


class KeepsAttention(Stateful):
    def forward(self, x):
        self.kept = self.linear(x).softmax(-1)
        return self.kept @ x.T


class KeepsNewAttribute(Stateful):
    def forward(self, x):
        self.weights = self.linear(x)
        return self.weights * 2


class KeepsTuple(Stateful):
    def forward(self, x):
        hidden, cell = self.kept if self.kept is not None else (x * 0, x * 0)
        cell = torch.tanh(self.linear(x) + cell)
        hidden = hidden * 0.5 + cell
        self.kept = (hidden.detach(), cell.detach())
        return hidden


class KeepsList(Stateful):
    def forward(self, x):
        if self.kept is None:
            self.kept = [x * 0, x * 0]
        self.kept = [(self.kept[0] + self.linear(x)).detach(), self.kept[1] * 2 + x]
        return self.kept[0] + self.kept[1]


class KeepsDict(Stateful):
    def forward(self, x):
        out = self.linear(x)
        self.kept = {"in": x, "out": out, "calls": (self.kept or {}).get("calls", 0) + 1}
        return out


class KeepsNestedDict(Stateful):
    def forward(self, x):
        before = 0 if self.kept is None else self.kept["layers"][0]["key"]
        self.kept = {"layers": [{"key": (self.linear(x) + before).detach()}, {"key": x * 2}], "length": x.shape[0]}
        return self.kept["layers"][0]["key"] + self.kept["layers"][1]["key"]


class Pair(NamedTuple):
    hidden: torch.Tensor
    cell: torch.Tensor


class KeepsNamedTuple(Stateful):
    def forward(self, x):
        state = self.kept or Pair(x * 0, x * 0)
        self.kept = Pair(self.linear(x).detach() + state.cell, state.hidden + 1)
        return self.kept.hidden * 2


@dataclass
class Memory:
    hidden: torch.Tensor
    steps: int = 0


class KeepsDataclass(Stateful):
    def forward(self, x):
        before = self.kept.hidden if self.kept is not None else x * 0
        self.kept = Memory((self.linear(x) + before).detach(), 3)
        return self.kept.hidden * 2


class KeepsDataclassInPlace(Stateful):
    def __init__(self):
        super().__init__()
        self.kept = Memory(torch.zeros(2, 4))

    def forward(self, x):
        self.kept.hidden = (self.linear(x) + self.kept.hidden).detach()
        return self.kept.hidden * 2


class KeepsInSubmodule(Stateful):
    def __init__(self):
        super().__init__()
        self.first, self.second = KeepsTuple(), KeepsAttention()

    def forward(self, x):
        return self.second(self.first(x)) @ self.first.kept[0]


class KeepsOneTensorTwice(Stateful):
    def forward(self, x):
        out = self.linear(x)
        self.kept, self.other = out, [out, out]
        return out


class KeepsOneListTwice(Stateful):
    def forward(self, x):
        made = [self.linear(x), x]
        self.kept, self.other = made, {"same": made}
        return made


class KeepsAnArgument(Stateful):
    def forward(self, x):
        self.kept = x
        return self.linear(x)


class KeepsAView(Stateful):
    def forward(self, x):
        out = self.linear(x)
        self.kept, self.row = out.T, x[0]
        return out


class KeepsAParameter(Stateful):
    def forward(self, x):
        self.kept = [self.linear.weight, self.linear.weight.T]
        return self.linear(x)


class KeepsAnOldContainer(Stateful):
    def __init__(self):
        super().__init__()
        self.kept = [torch.ones(4)]

    def forward(self, x):
        self.other = self.kept
        return self.linear(x) + self.kept[0]


class SwapsContainers(Stateful):
    def __init__(self):
        super().__init__()
        self.front, self.back = [torch.zeros(2, 4)], [torch.ones(2, 4)]

    def forward(self, x):
        self.front, self.back = self.back, self.front
        self.front[0] = (self.front[0] + self.linear(x)).detach()
        return self.front[0] - self.back[0]


class KeepsInDeque(Stateful):
    def __init__(self):
        super().__init__()
        self.kept = deque(maxlen=2)

    def forward(self, x):
        self.kept.append(self.linear(x))
        return torch.stack(tuple(self.kept)).sum(0)


class GrowsACache(Stateful):
    def forward(self, x):
        new = self.linear(x)
        self.kept = new if self.kept is None else torch.cat((self.kept, new), 0)
        return self.kept.sum(0)


class GrowsCachesInATuple(Stateful):
    def forward(self, x):
        keys, values = self.kept or (x[:0], x[:0])
        self.kept = (torch.cat((keys, self.linear(x).detach())), torch.cat((values, x)))
        return self.linear(x) @ self.kept[0].T @ self.kept[1]


class DeletesAnAttribute(Stateful):
    def forward(self, x):
        self.kept = self.linear(x)
        out = self.kept * 2
        del self.kept
        return out


class ReplacesABuffer(Stateful):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.linear(x) - self.mean


class ResizesABuffer(Stateful):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(1, 1))

    def forward(self, x):
        if self.mask.shape[0] != x.shape[0]:
            self.mask = torch.ones(x.shape[0], x.shape[0], dtype=torch.bool).tril()
        return self.mask.to(x.dtype) @ self.linear(x)


class FillsABuffer(Stateful):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", None)

    def forward(self, x):
        if self.table is None:
            self.table = torch.arange(4.0) * 2
        return self.linear(x) + self.table


class RegistersABuffer(Stateful):
    def forward(self, x):
        if not hasattr(self, "table"):
            self.register_buffer("table", torch.arange(4.0) * 2, persistent=False)
        return self.linear(x) + self.table


class KeepsWithoutGrad(Stateful):
    def forward(self, x):
        out = self.linear(x)
        with torch.no_grad():
            self.kept = out * 2
        return out


class KeepsWhatItReads(Stateful):
    def forward(self, x):
        out = self.linear(x)
        if self.kept is not None:
            out = out + self.kept
        self.kept = out.detach()
        return out


ALL = [
    KeepsAttention, KeepsNewAttribute, KeepsTuple, KeepsList, KeepsDict, KeepsNestedDict, KeepsNamedTuple,
    KeepsDataclass, KeepsDataclassInPlace, KeepsInSubmodule, KeepsOneTensorTwice, KeepsOneListTwice, KeepsAnArgument,
    KeepsAView, KeepsAParameter, KeepsAnOldContainer, SwapsContainers, DeletesAnAttribute, ReplacesABuffer,
    ResizesABuffer, FillsABuffer, RegistersABuffer, KeepsWithoutGrad, KeepsWhatItReads,
]  # fmt: skip


@pytest.mark.parametrize("make", ALL)
def test_stored_tensors_are_those_of_eager_and_compile_no_more_than_needed(make):
    # A number that changes becomes an input when it has changed once.
    variants = 3 if make is KeepsDict else 2
    assert_same_calls(make, [(torch.randn(2, 4),) for _ in range(4)], variants=variants)


@pytest.mark.parametrize("make", [KeepsInDeque, GrowsACache])
def test_state_that_grows_is_that_of_eager(make):
    assert_same_calls(make, [(torch.randn(2, 4),) for _ in range(4)])


@pytest.mark.parametrize("make", [GrowsACache, GrowsCachesInATuple])
def test_caches_that_grow_are_compiled_a_few_times_only(make):
    def compile(module):
        return precast.compile(module, backend="nop", fullgraph=True)

    calls = [(torch.randn(2, 4),) for _ in range(8)]
    assert_same_calls(make, calls, compile=compile, variants=4)
    with torch.no_grad():
        assert_same_calls(make, calls, compile=compile, variants=4, trains=False)


class Recorder:
    def __call__(self, module, inputs):
        module.scaled = module.weight * 2


def hooked():
    linear = nn.Linear(4, 4)
    linear.register_forward_pre_hook(Recorder())
    linear.register_forward_hook(lambda module, inputs, output: setattr(module, "seen", output))
    return nn.Sequential(linear, nn.ReLU())


def spectral_norm():
    return nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.ReLU())


@pytest.mark.parametrize("make", [hooked, spectral_norm])
def test_hooks_that_assign_attributes_are_part_of_the_graph(make):
    assert_same_calls(make, [(torch.randn(2, 4),) for _ in range(3)], variants=2)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
def test_a_weight_that_a_hook_sets_anew_trains():
    torch.manual_seed(0)
    original = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU())
    eager = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.ReLU())
    eager.load_state_dict(original.state_dict())
    compiled = compile_strictly(original)
    x = torch.randn(2, 4)
    for module in (eager, compiled):
        module(x).sum().backward()
    assert torch.equal(original[0].weight, eager[0].weight)
    assert torch.equal(original[0].weight_g.grad, eager[0].weight_g.grad)


def test_a_container_that_the_user_replaces_is_read_anew():
    def reset(module):
        module.kept = (torch.ones(2, 4), torch.ones(2, 4))

    assert_same_calls(KeepsTuple, [(torch.randn(2, 4),) for _ in range(4)], between=reset, variants=2)


class ReadsSizes(nn.Module):
    def __init__(self):
        super().__init__()
        self.sizes = [1, 2]

    def forward(self, x):
        return x * sum(self.sizes) * len(self.sizes)


def test_a_list_that_took_the_place_of_an_equal_one_is_watched():
    module = ReadsSizes()
    compiled = compile_strictly(module)
    assert compiled(torch.ones(1)) == 6
    module.sizes = [1, 2]
    assert compiled(torch.ones(1)) == 6
    module.sizes.append(3)
    assert compiled(torch.ones(1)) == 18
    module.sizes[0] = 5
    assert compiled(torch.ones(1)) == 30


class FailsLate(Stateful):
    def forward(self, x):
        self.kept = self.linear(x)
        self.calls = getattr(self, "calls", 0) + 1
        if x.shape[0] == 3:
            raise LookupError("no such thing")
        self.done = self.kept * 2
        return self.done


def test_what_a_program_stored_before_its_own_error_stays_as_in_eager():
    torch.manual_seed(0)
    eager = FailsLate()
    model = copy.deepcopy(eager)
    compiled = precast.compile(model, backend=nop)
    for module in (eager, compiled):
        module(torch.ones(2, 4))
        with pytest.raises(LookupError):
            module(torch.ones(3, 4))
    assert torch.equal(model.kept, eager.kept)
    assert torch.equal(model.done, eager.done)
    assert model.calls == eager.calls == 2


def test_a_compiled_module_is_copied_and_pickled_with_what_it_stores():
    compiled = aot_module(KeepsTuple(), nop)
    x = torch.randn(2, 4)
    compiled(x)
    expected = [compiled(x), compiled(x)]
    compiled.kept = None
    compiled(x)
    for again in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        assert torch.equal(again.kept[0], compiled.kept[0])
        assert all(torch.equal(again(x), each) for each in expected)
    assert torch.equal(compiled(x), expected[0])


def test_threads_get_their_own_results_and_leave_what_one_of_them_stored():
    module = KeepsAttention()
    compiled = aot_module(module, nop)
    inputs = [torch.full((2, 4), float(number)) for number in range(8)]
    expected = [compiled(x).detach() for x in inputs]
    stored = [compiled.linear(x).softmax(-1) for x in inputs]
    found = [None] * len(inputs)

    def run(number):
        for _ in range(20):
            found[number] = compiled(inputs[number]).detach()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(torch.equal, found, expected))
    assert any(torch.equal(module.kept, each) for each in stored)


def test_a_function_stores_tensors_in_closures_and_objects():
    seen, memory = [], Memory(torch.zeros(3))

    def step(x):
        seen.append(x * 2)
        memory.hidden = memory.hidden + x
        memory.steps += 1
        return memory.hidden

    compiled = aot_function(step, nop)
    for number in range(1, 4):
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), float(number)))
    assert memory.steps == len(seen) == 3
    assert torch.equal(memory.hidden, torch.full((3,), 3.0))


def _class_over_variables():
    """A class whose methods share variables of the function that made it, as in notebooks and factories."""
    count, sizes, kept = 0, [], {}

    @functools.lru_cache
    def table(size):
        return torch.arange(size, dtype=torch.float32)

    class Counting(nn.Module):
        def forward(self, x):
            nonlocal count
            count += 1
            sizes.append(x.shape[0])
            kept[count] = x * 2
            return x * count + table(4)

    return Counting(), lambda: (count, sizes, [each.sum().item() for each in kept.values()])


def test_variables_around_the_methods_of_a_class_are_state():
    eager, see_eager = _class_over_variables()
    ours, see_ours = _class_over_variables()
    compiled = precast.compile(ours, backend="nop")
    for rows in (1, 2, 2, 3):
        x = torch.ones(rows, 4)
        assert torch.equal(compiled(x), eager(x))
        assert see_ours() == see_eager()


def test_export_refuses_stored_tensors_and_tells_who_keeps_them():
    with pytest.raises(StateMutationError, match=r"stores a tensor in kept[\s\S]*precast.compile keeps"):
        precast.export(KeepsAttention(), (torch.ones(2, 4),))


@pytest.mark.parametrize("options", [{}, {"freeze": True}])
def test_native_code_reads_and_leaves_state(options):
    def compile(module):
        return precast.compile(module.eval(), options=options, fullgraph=True)

    with torch.no_grad():
        for make in (KeepsTuple, ReplacesABuffer):
            calls = [(torch.randn(2, 4),) for _ in range(3)]
            assert_same_calls(lambda make=make: make().eval(), calls, compile=compile, trains=False)
