"""Text, token by token: ``python examples/generate/bytes.py``.

Trains a tiny GPT-2 over the bytes of a text for a minute, packages it, and lets it go on writing in a process without
torch. With a model and a tokenizer of your own, only the training goes away.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers

import precast

TEXT = Path(__file__).parents[1] / "train" / "harbour.txt"
LENGTH = 64


def make() -> transformers.GPT2LMHeadModel:
    config = transformers.GPT2Config(
        vocab_size=256, n_positions=4 * LENGTH, n_embd=128, n_layer=2, n_head=4,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    torch.manual_seed(0)
    return transformers.GPT2LMHeadModel(config)


def train(model: transformers.GPT2LMHeadModel, steps: int) -> float:
    """A compiled step over random pieces of the text."""
    text = torch.tensor(list(TEXT.read_bytes()))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step = precast.train_step(model, loss_fn, optimizer, pieces(text), grad_clip=1.0)
    for number in range(steps):
        loss = step(pieces(text))
        if number % 50 == 0:
            print(f"step {number}: loss {float(loss):.3f}")
    return float(loss)


def loss_fn(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1], use_cache=False).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def pieces(text: torch.Tensor) -> torch.Tensor:
    starts = torch.randint(0, len(text) - LENGTH - 1, (16,))
    return torch.stack([text[start : start + LENGTH + 1] for start in starts])


def main(steps: int, tokens: int) -> None:
    model = make()
    train(model, steps)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "harbour.precast"
        precast.generation.package(model.eval(), path, max_length=4 * LENGTH)
        print(f"{path.name}: {path.stat().st_size:,} bytes; without torch:")
        # Without a tokenizer, a token is a byte.
        command = ["generate", str(path), "--prompt", "The harbour", "--tokens", str(tokens), "--temperature", "0.5"]
        code = (
            f"import sys; sys.modules['torch'] = None; sys.argv[1:] = {command!r}; from precast.cli import main; main()"
        )
        subprocess.run([sys.executable, "-c", code], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=120)
    arguments = parser.parse_args()
    main(arguments.steps, arguments.tokens)
