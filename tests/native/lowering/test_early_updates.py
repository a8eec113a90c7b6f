"""Updates of inputs come as soon as their gradients exist."""

import torch

import precast
from precast.native.loops.program import LoopProgram, read_by, written_by
from precast.native.programs import lower_segments, prepare_graph
from precast.native.targets import target_for


def fused_step(**settings) -> tuple[LoopProgram, int]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64, bias=False) for _ in range(4)))
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(8, 64)
    loss_fn = lambda model, x: model(x).square().mean()  # noqa: E731
    step = precast.train_step(model, loss_fn, optimizer, batch, **settings)
    module = step._fitting(batch)[0].module
    target = target_for({torch.device("cpu")})
    (entry,) = lower_segments(prepare_graph(module, target, step._options), target, verify="passes")
    return entry.program, step.arena_bytes


def places_of_updates(program):
    updated = [number for number, step in enumerate(program.steps)
               if any(each in program.inputs and each.shape for each in written_by(step))]  # fmt: skip
    products = [number for number, step in enumerate(program.steps) if type(step).__name__ == "LibraryCall"]
    return updated, products


def test_each_weight_is_updated_before_the_gradient_of_the_next_is_computed():
    program, arena = fused_step()
    updated, products = places_of_updates(program)
    assert len(updated) == 4
    assert updated[0] < products[-1]
    assert sum(place > products[-1] for place in updated) == 1
    # No two gradients, of 16 KiB each, are alive at a time.
    clipped, larger = fused_step(grad_clip=1.0)
    assert larger >= arena + 3 * 64 * 64 * 4 // 2
    updated, products = places_of_updates(clipped)
    assert min(updated) > products[-1]


def test_old_weights_are_read_before_they_are_updated():
    program, _ = fused_step()
    for number, step in enumerate(program.steps):
        for buffer in written_by(step):
            if buffer in program.inputs:
                assert not any(buffer in read_by(later) for later in program.steps[number + 1 :])
