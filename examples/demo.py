"""What Precast does today, on a small transformer: capture, look, run, compile, train, and compare with eager."""

import copy

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import precast

console = Console(soft_wrap=True)


class Block(nn.Module):
    """Attention and a perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(self.first_norm(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        return x + self.perceptron(self.second_norm(x))


class SmallTransformer(nn.Module):
    """Predicts the next of 100 tokens."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.head = nn.Linear(width, 100)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(tokens)))


def show_captured_program(model: nn.Module, tokens: torch.Tensor) -> None:
    console.rule("1. Capture: the model as a functional ATen graph, batch and sequence dynamic")
    shapes = {"tokens": {0: precast.Dim("batch", min=1), 1: precast.Dim("sequence", min=1)}}
    program = precast.functional_program(model, (tokens,), dynamic_shapes=shapes)
    lines = precast.print_program(program).splitlines()
    console.print("\n".join(line[:140] for line in lines[:14]), markup=False, highlight=False)
    console.print(f"    … {len(program.graph.nodes)} nodes in all", markup=False)
    other = torch.randint(0, 100, (5, 23))
    difference = (precast.interpret(program, other) - model(other)).abs().max().item()
    console.print(f"Interpreted at another size {tuple(other.shape)}: largest difference to eager {difference:.1e}")


def train_both(model: nn.Module, tokens: torch.Tensor, steps: int = 5) -> None:
    console.rule("2. Compile: forward and backward, trained side by side with eager")
    eager, compiled = copy.deepcopy(model), precast.compile(copy.deepcopy(model))
    table = Table("step", "loss, eager", "loss, compiled", "largest difference of a parameter")
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (eager, compiled)]
    for step in range(steps):
        losses = []
        for network, optimizer in zip((eager, compiled), optimizers, strict=True):
            logits = network(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        pairs = zip(eager.parameters(), compiled.parameters(), strict=True)
        difference = max((a - b).abs().max().item() for a, b in pairs)
        table.add_row(str(step), f"{losses[0]:.6f}", f"{losses[1]:.6f}", f"{difference:.1e}")
    console.print(table)


def show_memory_plan(model: nn.Module, tokens: torch.Tensor) -> None:
    console.rule("3. Memory: what is saved for the backward, and what saving less costs")
    curve = precast.partition.plan(lambda x: model(x).square().mean(), (tokens,), budgets=[1.0, 0.5, 0.25, 0.0])
    console.print(curve.as_table(), markup=False, highlight=False)


def main() -> None:
    torch.manual_seed(0)
    model = SmallTransformer()
    tokens = torch.randint(0, 100, (4, 32))
    show_captured_program(model, tokens)
    train_both(model, tokens)
    show_memory_plan(model, tokens)


if __name__ == "__main__":
    main()
