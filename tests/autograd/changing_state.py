"""Random programs over modules with Python state, changed at random between calls: compiled and eager must agree.

Run from the command line for as long as there is time; failures are told, and it goes on:

    python -m tests.autograd.changing_state 0 10000
"""

import copy
import random
import sys
import time
import traceback
import warnings
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

import precast
from tests.autograd import changing_parts
from tests.autograd.changing_parts import PARTS, TABLE, WIDTH, changes_of

# Long sequences are seldom: most of what goes wrong takes one change.
_STEPS = [2, 2, 2, 3, 5]


class Program(nn.Module):
    """Runs its parts one after the other; ``log`` is what hooks tell."""

    def __init__(self, kinds):
        super().__init__()
        self.parts, self.scale, self.log, self.handles = nn.ModuleList(kind() for kind in kinds), 1.0, [], []

    def forward(self, x, scale=1.0):
        for part in self.parts:
            x = part(x)
        return x * self.scale * scale


def _keeping_hooks(program):
    """Hooks, by a name each; those that tell something cannot be captured."""
    log = program.log
    return {
        "scales": lambda m: m.register_forward_hook(lambda _, args, y: y * 2),
        "shifts": lambda m: m.register_forward_pre_hook(lambda _, args: (args[0] + 1, *args[1:])),
        "keeps": lambda m: m.register_forward_hook(lambda _, args, y: log.append(y.detach())),
        "tells": lambda m: m.register_forward_hook(lambda _, args, y: log.append(y.sum().item())),
        "tells first": lambda m: m.register_forward_hook(lambda *_: log.append(len(log)), prepend=True),
        "always": lambda m: m.register_forward_hook(lambda *_: log.append("always"), always_call=True),
        "backward": lambda m: m.register_full_backward_hook(lambda _, i, o: log.append(o[0].sum().item())),
        "scales gradients": lambda m: m.register_full_backward_hook(
            lambda _, i, o: tuple(each if each is None else each * 2 for each in i)
        ),
        "all": lambda m: module_hooks.register_module_forward_hook(
            lambda m, args, y: log.append(len(args)) if m in _own(program) else None
        ),
    }


def _own(program):
    return list(program.modules())


def _hook(program, chance):
    kinds = _keeping_hooks(program)
    if program.handles and chance.random() < 0.5:
        program.handles.pop(chance.randrange(len(program.handles))).remove()
    else:
        modules = [each for each in program.modules() if not isinstance(each, (nn.ModuleList, nn.ModuleDict))]
        program.handles.append(kinds[chance.choice(list(kinds))](chance.choice(modules)))


def _other_type(program, chance):
    program.to(chance.choice([torch.float32, torch.float64]))


def _swap_parts(program, chance):
    parts = list(program.parts)
    chance.shuffle(parts)
    program.parts = nn.ModuleList(parts)


def _share_part(program, chance):
    program.parts.append(chance.choice(list(program.parts)))


def _new_part(program, chance):
    program.parts[chance.randrange(len(program.parts))] = chance.choice(PARTS)().double()


def _load(program, chance):
    state = {
        name: torch.rand_like(each) if each.is_floating_point() else each for name, each in program.state_dict().items()
    }
    program.load_state_dict(state)


CHANGES = {
    "hook": _hook,
    "type": _other_type,
    "parts swapped": _swap_parts,
    "a part shared": _share_part,
    "a new part": _new_part,
    "state loaded": _load,
    "scale": lambda program, chance: setattr(program, "scale", chance.choice([1.0, 2.0, 0.5])),
    "mode": lambda program, chance: program.train(chance.choice([True, False])),
    "mode of a part": lambda program, chance: chance.choice(list(program.parts)).train(chance.choice([True, False])),
    "frozen": lambda program, chance: program.requires_grad_(chance.choice([True, False])),
    "unrelated": lambda program, chance: setattr(program, "comment", chance.random()),
}


def _globals(chance):
    TABLE["gain"] = chance.random()
    TABLE["powers"].append(chance.randrange(3))
    changing_parts.SWITCH = chance.random() < 0.7


def _change(program, seed):
    """One change, told by its name."""
    chance = random.Random(seed)
    torch.manual_seed(chance.randrange(1000))
    part = chance.choice(list(program.parts))
    names = changes_of(part)
    if not names or chance.random() < 0.4:
        name = chance.choice(list(CHANGES))
        CHANGES[name](program, chance)
        return name
    name = chance.choice(names)
    getattr(part, name)(chance)
    return f"{type(part).__name__}.{name}"


def _observed(program):
    """What a caller can see of a program beside its results."""
    seen = [*program.buffers(), *program.log]
    for part in program.parts:
        if hasattr(part, "count"):
            seen += [part.count, part.memory.last, *part.log]
    return [
        each
        if isinstance(each, torch.Tensor)
        else torch.tensor(0.0 if each is None else len(each) if isinstance(each, str) else each)
        for each in seen
    ]


def _called(module, arguments, seed):
    torch.manual_seed(seed)
    x = arguments[0].clone().requires_grad_(arguments[0].requires_grad)
    result = module(x, *arguments[1:])
    if not result.requires_grad:
        return [result]
    inputs = [each for each in (x, *module.parameters()) if each.requires_grad]
    weights = torch.linspace(0.5, 1.5, result.numel(), dtype=result.dtype).reshape(result.shape)
    gradients = torch.autograd.grad((result * weights).sum(), inputs, allow_unused=True)
    return [result, *(torch.zeros(()) if each is None else each for each in gradients)]


@dataclass(frozen=True)
class _Call:
    """How a program is called: most often as it was before, so that what was compiled is found again."""

    rows: int
    needs_gradient: bool
    scales: tuple[float, ...]
    has_grad_mode: bool
    is_autocast: bool

    @classmethod
    def chosen(cls, chance):
        scales = (chance.choice([2.0, 3.0]),) if chance.random() < 0.2 else ()
        rows = chance.choice([4, 4, 5])
        return cls(rows, chance.random() < 0.3, scales, chance.random() < 0.3, chance.random() < 0.05)


def run_sequence(seed, backend="nop"):
    """Change and call; an AssertionError tells the changes made so far."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    changing_parts.reset()
    eager = Program(chance.choices(PARTS, k=chance.choice([1, 1, 1, 2]))).double()
    module = copy.deepcopy(eager)
    options = {"random": "eager"} if backend == "native" else None
    compiled = precast.compile(module, backend=backend, dynamic=chance.choice([False, None]), options=options)
    made = [f"parts {[type(part).__name__ for part in eager.parts]}"]
    call = _Call.chosen(chance)
    try:
        for step in range(chance.choice(_STEPS)):
            _compare(compiled, module, eager, call, seed + step, made)
            for _ in range(chance.choice([0, 1, 1, 2])):
                change_seed = chance.random()
                names = {_change(each, change_seed) for each in (eager, module)}
                assert len(names) == 1, "both are changed alike"
                made += names
            if chance.random() < 0.1:
                _globals(chance)
                made.append("globals")
            if chance.random() < 0.1:
                call = _Call.chosen(chance)
    finally:
        for handle in (*eager.handles, *module.handles):
            handle.remove()


def _compare(compiled, module, eager, call, seed, made):
    kind = next((each.dtype for each in eager.parameters()), torch.float64)
    x = torch.randn(call.rows, WIDTH, generator=torch.Generator().manual_seed(seed)).to(kind)
    arguments = (x.requires_grad_(call.needs_gradient), *call.scales)
    autocast = torch.autocast("cpu", torch.bfloat16) if call.is_autocast else nullcontext()
    made.append("call")
    with torch.set_grad_enabled(call.has_grad_mode), autocast, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs, ours = _outcome(eager, arguments, seed), _outcome(compiled, arguments, seed)
    if isinstance(theirs, str) or isinstance(ours, str):
        assert ours == theirs, (seed, made, ours, theirs)
        return
    pairs = list(zip([*ours, *_observed(module)], [*theirs, *_observed(eager)], strict=True))
    for left, right in pairs:
        assert type(left) in (torch.Tensor, nn.Parameter), (seed, made)
        assert (left.dtype, left.shape) == (right.dtype, right.shape), (seed, made)
        exact = right.dtype == torch.float64 and kind == torch.float64
        is_coarse = call.is_autocast or right.dtype == torch.bfloat16
        tolerance = 1e-1 if is_coarse else 1e-9 if exact else 1e-4
        assert torch.allclose(left, right, tolerance, tolerance, equal_nan=True), (seed, made, left, right)


def _outcome(module, arguments, seed):
    """The results of a call; if it fails, as what."""
    try:
        return _called(module, arguments, seed)
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        return type(error).__name__


if __name__ == "__main__":
    first, last = map(int, sys.argv[1:3])
    torch.set_num_threads(1)
    started, failures = time.time(), 0
    for number in range(first, last):
        try:
            run_sequence(number, backend="native" if number % 100 == 99 else "nop")
        except Exception:  # noqa: BLE001
            failures += 1
            print("sequence", number, traceback.format_exc(limit=-4), flush=True)
        if number % 50 == 49:
            print(number + 1 - first, "sequences,", failures, "failures,", f"{time.time() - started:.0f} s", flush=True)
