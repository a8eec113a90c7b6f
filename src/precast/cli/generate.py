"""``precast generate``: text from a packaged language model, without torch."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer

from precast.cli.examples import examples
from precast.cli.progress import telling_steps
from precast.cli.shared_options import AsJson, PublicKey, Threads
from precast.errors import InputValueError
from precast.runtime import load
from precast.runtime.generation import generate
from precast.runtime.sampling import Sampling
from precast.runtime.tokenizers import ByteTokenizer, FileTokenizer, Streaming, Tokenizer

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")
EXAMPLES = examples(
    "precast generate chat.precast --tokenizer tokenizer.json --prompt 'Once upon a time'",
    "precast generate chat.precast --ids 1,2,3 --tokens 16 --json",
)


@app.command(name="generate", epilog=EXAMPLES)
def generate_command(
    file: Annotated[Path, typer.Argument(help="A .precast file that precast.generation.package wrote.")],
    prompts: Annotated[
        list[str] | None,
        typer.Option("--prompt", "-p", help="The text to continue; repeat it for several rows."),
    ] = None,
    ids: Annotated[
        str | None, typer.Option(help="Tokens to continue instead of text, as numbers separated by commas.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="The model's tokenizer.json; without it, tokens are bytes.")
    ] = None,
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Maximum number of tokens to generate.")] = 128,
    temperature: Annotated[float, typer.Option(help="0 picks the likeliest token; higher values vary more.")] = 0.0,
    top_k: Annotated[int | None, typer.Option(help="Sample from the k likeliest tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Sample from the likeliest tokens that together have this probability.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of sampling, to repeat a result.")] = None,
    ends: Annotated[
        list[int] | None, typer.Option("--end", help="A token that ends the text; may be repeated.")
    ] = None,
    threads: Threads = None,
    key: PublicKey = None,
    as_json: AsJson = False,
) -> None:
    """Generate text with a packaged language model, without torch.

    The text is streamed; the speed is printed at the end, on standard error. Native code in the file runs with your
    rights: only run files from people you trust, or require their signature.
    """
    reader: Tokenizer = ByteTokenizer() if tokenizer is None else FileTokenizer(tokenizer)
    rows = _prompts(prompts or [], ids, reader)
    sampling = Sampling(temperature, top_k, top_p, seed)
    with telling_steps() as tell:
        tell(f"loading {file}")
        started = time.perf_counter()
        model = load(file, threads=threads, require_signature=key)
        loaded = time.perf_counter()
    made: list[list[int]] = [[] for _ in rows]
    streams = [Streaming(reader) for _ in rows]
    is_shown = len(rows) == 1 and not as_json
    times: list[float] = []
    for step in generate(model, rows, max_new_tokens=tokens, sampling=sampling, ends=ends):
        times.append(time.perf_counter())
        for row, token in enumerate(step):
            if token is not None:
                made[row].append(token)
                new = streams[row].add(token)
                if is_shown:
                    typer.echo(new, nl=False)
    if is_shown:
        typer.echo(streams[0].rest())
    _tell(rows, made, reader, [loaded - started, *(each - loaded for each in times)], is_shown, as_json)


def _prompts(texts: list[str], ids: str | None, tokenizer: Tokenizer) -> list[list[int]]:
    if bool(texts) == (ids is not None):
        raise InputValueError(
            "Either --prompt or --ids is needed.", why="generated text continues a prompt", fix="Pass one of them."
        )
    if ids is None:
        return [tokenizer.encode(text) for text in texts]
    try:
        return [[int(each) for each in ids.split(",")]]
    except ValueError as problem:
        raise InputValueError(f"--ids is {ids!r}.", why=str(problem), fix="Pass numbers with commas: 1,2,3.") from None


def _tell(
    prompts: list[list[int]],
    made: list[list[int]],
    tokenizer: Tokenizer,
    times: list[float],
    is_shown: bool,
    as_json: bool,
) -> None:
    """Report the speed; `times` are those of loading, then of each token since then."""
    loading, first, *later = times
    count = sum(map(len, made))
    speed = (count - len(made)) / (later[-1] - first) if later else None
    if as_json:
        facts = {
            "texts": [tokenizer.decode(each) for each in made],
            "tokens": made,
            "prompt_tokens": [len(each) for each in prompts],
            "seconds_to_load": loading,
            "seconds_to_first_token": first,
            "tokens_per_second": speed,
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    if not is_shown:
        for number, each in enumerate(made):
            typer.echo(f"[{number}] {tokenizer.decode(each)}")
    rate = "" if speed is None else f", {speed:.1f} tokens/s after it"
    typer.echo(
        f"\n{count} tokens; loaded in {loading * 1e3:.0f} ms, first token after {first * 1e3:.0f} ms{rate}", err=True
    )
