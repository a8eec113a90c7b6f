"""The description of the file format is what the code checks with."""

from pathlib import Path

from precast.export.serialize.schema_document import schema_document
from tests.golden_files import assert_file_holds

DOCUMENT = Path(__file__).parents[2] / "docs" / "export-schema.md"


def test_the_committed_document_is_up_to_date():
    assert_file_holds(DOCUMENT, schema_document())
