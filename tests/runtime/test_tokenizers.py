"""Text to tokens and back, for generated text."""

import pytest

from precast.errors import ArtifactError
from precast.runtime.tokenizers import ByteTokenizer, FileTokenizer, Streaming


def test_characters_of_several_bytes_are_told_once_they_are_whole():
    tokenizer = ByteTokenizer()
    stream = Streaming(tokenizer)
    assert [stream.add(token) for token in tokenizer.encode("a€")] == ["a", "", "", "€"]
    assert stream.add(0xE2) + stream.rest() == "\ufffd"


def test_a_tokenizer_file_is_read(tmp_path):
    library = pytest.importorskip("tokenizers")
    made = library.Tokenizer(library.models.WordLevel({"the": 0, "tide": 1, "[UNK]": 2}, unk_token="[UNK]"))
    made.pre_tokenizer = library.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = FileTokenizer(tmp_path / "tokenizer.json")
    assert tokenizer.encode("the tide") == [0, 1]
    assert tokenizer.decode([1, 0]) == "tide the"


def test_what_is_no_tokenizer_is_refused(tmp_path):
    pytest.importorskip("tokenizers")
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ArtifactError, match="not a tokenizer"):
        FileTokenizer(tmp_path / "other.json")
    with pytest.raises(ArtifactError, match="cannot be read"):
        FileTokenizer(tmp_path / "missing.json")
