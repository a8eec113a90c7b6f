"""The package must stand on its own legs where it replaces a part of torch."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repository.sources import dotted_names, package_files, relative

REPLACED = re.compile(r"(functorch|torch\.(export|_export|_functorch|_dynamo|_inductor|onnx))(\.[\w.]+)?")


def replaced_modules_in(code: str) -> Iterator[tuple[int, str]]:
    """Line and name of every use of a replaced module: imported, reached as an attribute, or spelled as a string."""
    tree = ast.parse(code)
    strings = ((node.lineno, node.value) for node in ast.walk(tree) if _is_string(node))
    for line, name in [*dotted_names(tree), *strings]:
        if REPLACED.fullmatch(name):
            yield line, name


def _is_string(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_the_package_uses_nothing_that_it_replaces():
    uses = [
        f"{relative(path)}:{line}: {name}"
        for path in package_files()
        for line, name in replaced_modules_in(path.read_text())
    ]
    assert not uses, "\n".join(["these are parts of torch that Precast replaces:", *uses])


@pytest.mark.parametrize(
    "code",
    [
        "import torch.export",
        "import torch._dynamo as dynamo",
        "from torch import _inductor",
        "from torch._functorch.partitioners import min_cut_rematerialization_partition",
        "import functorch",
        "def later():\n    from torch.onnx import export",
        "torch._dynamo.reset()",
        "import_module('torch._export.utils')",
        "HOMES = {'compile': 'torch._inductor.compile_fx'}",
    ],
)
def test_each_way_to_reach_a_replaced_module_is_seen(code):
    assert list(replaced_modules_in(code))


@pytest.mark.parametrize(
    "code",
    [
        "from torch.func import vjp",
        "import torch.fx",
        "x = 'unlike torch.export, this one'",
        "from precast.onnx import export",
    ],
)
def test_other_modules_are_fine(code):
    assert not list(replaced_modules_in(code))
