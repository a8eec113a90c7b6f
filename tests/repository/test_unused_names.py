"""What the package defines, the package uses: nothing is kept for tests alone."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from tests.repository.sources import PACKAGE, ROOT, package_files

# By torch, torch.fx, onnxscript and typer, which chose these names; and methods for users.
CALLED_BY_OTHERS = frozenset((
    "guard_source", "_name_template", "is_completed", "is_success", "_get_sloc", "is_leaf_module",
    "create_args_for_root", "to_bool", "right_inverse", "gen_var_bindings", "tofile", "eval_op", "eval_function",
    "make_context", "compile_graph", "extra_repr",
    "call_modules", "apply_weights", "adapt_torch_outputs", "call_reference", "compute_values", "as_svg",
))  # fmt: skip
DECORATED = re.compile(r"@(?:property|staticmethod|classmethod|cached_property|cache|contextmanager|final|dataclass)\b")


def defined(lines: Sequence[str]) -> Iterable[str]:
    """Names of functions and classes; not of those that a decorator puts into a table."""
    for before, line in zip(["", *lines], lines, strict=False):
        found = re.match(r"\s*(?:async )?(?:def|class) (\w+)", line)
        is_registered = before.lstrip().startswith(("@", ")")) and not DECORATED.match(before.lstrip())
        if found and not is_registered and not found[1].startswith("__"):
            yield found[1]


def unused(files: Sequence[str], public: str) -> list[str]:
    """Names that appear only where they are defined."""
    words = Counter(word for text in files for word in re.findall(r"\w+", text))
    known = {*re.findall(r"\w+", public), *CALLED_BY_OTHERS}
    return [name for text in files for name in defined(text.splitlines()) if words[name] == 1 and name not in known]


def test_every_name_is_used():
    public = (ROOT / "tests" / "repository" / "public_api.txt").read_text()
    assert not unused([path.read_text() for path in package_files()], public)


def test_an_unused_name_is_seen():
    code = "def one(): ...\n@rule(1)\ndef two(): ...\n@cache\ndef three(): ...\nclass Four:\n    def five(self): ...\n"
    assert unused([code, "Four()"], "five is for users") == ["one", "three"]


def test_names_that_others_call_are_there():
    texts = "\n".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    assert {name for name in CALLED_BY_OTHERS if not re.search(rf"def {name}\b", texts)} == set()
