"""Tokens of transformers' ``generate()``: milliseconds a token, eager and compiled, and what compiling them took.

Small decoders with random weights on one thread, batch of one: what counts is the way through a call, which large
models hide. Contenders take turns; the best of several generations counts.

    python -m benchmarks.generation
"""

import time
from collections.abc import Callable
from typing import Any

import torch
import transformers

import precast

TOKENS, PROMPT, ROUNDS = 32, 16, 5
_ENDS = {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0, "vocab_size": 1000}


def gpt2() -> Any:
    config = transformers.GPT2Config(n_embd=256, n_layer=4, n_head=4, **_ENDS)
    return transformers.GPT2LMHeadModel(config).eval()


def llama() -> Any:
    sizes = {"hidden_size": 256, "intermediate_size": 688, "num_hidden_layers": 4, "num_attention_heads": 4}
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **_ENDS)).eval()


def generator(model: Any, **options: Any) -> Callable[[], torch.Tensor]:
    prompt = torch.arange(2, 2 + PROMPT)[None]

    def run() -> torch.Tensor:
        torch.manual_seed(0)
        with torch.no_grad():
            tokens: torch.Tensor = model.generate(prompt, max_new_tokens=TOKENS, **options)
        return tokens

    return run


def compare(title: str, make: Callable[[], Any], **options: Any) -> None:
    """Check that both generate the same, and print the time of a token."""
    torch.manual_seed(0)
    model = make()
    compiled = precast.compile(model)
    runs = {"eager": generator(model, **options), "precast": generator(compiled, **options)}
    started = time.perf_counter()
    first = runs["precast"]()
    compiling = time.perf_counter() - started
    same = torch.equal(first, runs["eager"]())
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(ROUNDS):
        for name, run in runs.items():
            started = time.perf_counter()
            run()
            best[name] = min(best[name], (time.perf_counter() - started) / TOKENS * 1e3)
    told = "  ".join(f"{name} {value:6.2f} ms" for name, value in best.items())
    count = len(precast.variants(compiled))
    print(f"{title:28}{told}  {count} variants in {compiling:.1f} s, same tokens: {same}", flush=True)


def main() -> None:
    torch.set_num_threads(1)
    for make in (gpt2, llama):
        for cache in ("dynamic", "static"):
            for sampled in (False, True):
                kind = "sampled" if sampled else "greedy"
                options = {"do_sample": sampled, "cache_implementation": cache}
                compare(f"{make.__name__}, {cache} cache, {kind}", make, **options)


if __name__ == "__main__":
    main()
