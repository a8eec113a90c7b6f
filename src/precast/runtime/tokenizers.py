"""Converts text to tokens and back: by a ``tokenizer.json``, or byte by byte."""

from __future__ import annotations

import os
from typing import Any, Protocol

from precast.errors import ArtifactError, ToolMissingError


class Tokenizer(Protocol):
    """Encodes and decodes a model's tokens."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: list[int]) -> str: ...


class ByteTokenizer:
    """One token for each byte of the text in UTF-8."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: list[int]) -> str:
        return bytes(each for each in tokens if each < 256).decode(errors="replace")


class FileTokenizer:
    """The tokenizer of a ``tokenizer.json``, which the package ``tokenizers`` reads."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import tokenizers
        except ImportError as problem:
            raise ToolMissingError(
                "tokenizer.json cannot be read here.",
                why="the package tokenizers is not installed",
                fix="pip install 'precast[generate]'",
            ) from problem
        library: Any = tokenizers
        try:
            with open(path, encoding="utf-8") as file:
                self._tokenizer = library.Tokenizer.from_str(file.read())
        except OSError as problem:
            why = problem.strerror or str(problem)
            raise ArtifactError(f"{path} cannot be read.", why=why, fix="Check the path.") from problem
        except Exception as problem:
            raise ArtifactError(
                f"{path} is not a tokenizer.", why=str(problem), fix="Pass the tokenizer.json of the model."
            ) from problem

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)

    def decode(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))


class Streaming:
    """Decodes a growing sequence of tokens: returns new text as soon as its characters are complete."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._returned = 0

    def add(self, token: int) -> str:
        """The text that this token adds; empty while a character is incomplete."""
        self._tokens.append(token)
        text = self._tokenizer.decode(self._tokens)
        if text.endswith("\ufffd"):
            return ""
        return self._new(text)

    def rest(self) -> str:
        """The text of incomplete characters."""
        return self._new(self._tokenizer.decode(self._tokens))

    def _new(self, text: str) -> str:
        new, self._returned = text[self._returned :], len(text)
        return new
