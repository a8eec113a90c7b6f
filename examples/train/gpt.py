"""A small GPT over characters: trained with torch, then without torch, then from C. ``python examples/train/gpt.py``.

All three make the same step: ``precast.train_step`` compiles it, ``step.save`` writes it into one file, and each goes
on from the state that the one before has left.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import torch
from torch import nn

import precast

HERE = Path(__file__).parent
TEXT = HERE / "harbour.txt"
ROWS, LENGTH, CHARACTERS = 12, 48, 128


class Block(nn.Module):
    """Attention to what came before, and a perceptron, each added to what came in."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first_norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(0.05)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.query_key_value(self.first_norm(x)).chunk(3, -1)
        )
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.dropout(self.project(attended.transpose(1, 2).flatten(2)))
        return x + self.dropout(self.perceptron(self.second_norm(x)))


class CharacterModel(nn.Module):
    """What the next character is, for each of a text's."""

    def __init__(self, width: int = 64, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        self.characters, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CHARACTERS, bias=False)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.characters(text) + self.places(places))))


def loss_fn(model: nn.Module, text: torch.Tensor) -> torch.Tensor:
    """How far the model is from knowing the text's next characters."""
    return nn.functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def random_pieces(generator: torch.Generator) -> torch.Tensor:
    """Pieces of the text, each one character longer than what the model sees."""
    text = torch.frombuffer(bytearray(TEXT.read_bytes()), dtype=torch.uint8).long()
    starts = torch.randint(len(text) - LENGTH, (ROWS,), generator=generator)
    return torch.stack([text[start : start + LENGTH + 1] for start in starts.tolist()])


def with_torch(steps: int, path: Path) -> None:
    torch.manual_seed(0)
    model = CharacterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=20)
    generator = torch.Generator().manual_seed(0)
    started = time.perf_counter()
    step = precast.train_step(model, loss_fn, optimizer, random_pieces(generator), grad_clip=1.0)
    print(f"compiled in {time.perf_counter() - started:.1f} s")
    started = time.perf_counter()
    for number in range(1, steps + 1):
        loss = step(random_pieces(generator))
        schedule.step()
        if number == 1 or number % 50 == 0:
            print(f"step {number:4}: loss {loss:.3f}")
    print(f"{steps / (time.perf_counter() - started):.0f} steps a second")
    step.save(path)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # an import of torch would fail
import json, numpy, precast.runtime
package, state, text, steps, rows, length = sys.argv[1:]
model = precast.runtime.load(package)
text = numpy.frombuffer(open(text, "rb").read(), numpy.uint8).astype(numpy.int64)
random = numpy.random.default_rng(1)

def pieces():
    for _ in range(int(steps)):
        starts = random.integers(len(text) - int(length), size=int(rows))
        yield numpy.stack([text[start : start + int(length) + 1] for start in starts])

def tell(done):
    if done.step == 1 or done.step % 50 == 0:
        print(f"step {done.step:4}: loss {done.loss:.3f}")

precast.runtime.train(model, pieces(), steps=int(steps), on_step=tell)
model.state.save(state)
"""


def without_torch(steps: int, path: Path, state: Path) -> None:
    arguments = [path, state, TEXT, steps, ROWS, LENGTH]
    subprocess.run([sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)], check=True)


def from_c(steps: int, path: Path, state: Path, folder: Path) -> None:
    """Build ``examples/c/train_model.c`` and run it over the library in the package and the state that was saved."""
    with zipfile.ZipFile(path) as package:
        library = package.extract("native/native/model.so", folder)
    program = folder / "train_model"
    include, source = HERE.parents[1] / "include", HERE.parent / "c" / "train_model.c"
    subprocess.run(["cc", "-std=c11", "-O2", "-I", include, source, "-ldl", "-o", program], check=True)
    onednn = Path(sys.prefix) / "lib" / "libdnnl.so.3"
    arguments = [onednn, library, state, TEXT, steps, ROWS, LENGTH]
    subprocess.run([program, *map(str, arguments)], check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=150, help="how many steps each of the three makes")
    steps = parser.parse_args().steps
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path, state = folder / "gpt.precast", folder / "state.safetensors"
        print(f"With torch: {json.dumps(TEXT.name)}, {TEXT.stat().st_size} characters")
        with_torch(steps, path)
        print(f"\nWithout torch, from a file of {path.stat().st_size / 2**20:.1f} MiB")
        without_torch(steps, path, state)
        print("\nFrom C, over the same library and that state", flush=True)
        from_c(steps, path, state, folder)


if __name__ == "__main__":
    main()
