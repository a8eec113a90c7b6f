import subprocess
import sys

import pytest

from precast.cache import import_closure, own_sources
from precast.cache import sources as sources_module

FILES = {
    "__init__.py": "",
    "lower/__init__.py": "from precast.lower import (\n    rule,\n)\n",
    "lower/rule.py": "def later():\n    from precast.facts import table\n",
    "lower/deep/part.h": "one",
    "facts/__init__.py": 'from precast.lazy_names import lazy_name\n_HOMES = {"table": "precast.facts.home"}\n',
    "facts/home.py": "import precast.shared\n",
    "shared.py": "",
    "report.py": "if TYPE_CHECKING:\n    from precast.lower import rule\n",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A small package in place of ours, whose files are read anew each time."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(sources_module, "_ROOT", str(tmp_path))
    monkeypatch.setattr(sources_module, "_files", sources_module._files.__wrapped__)
    return tmp_path


def key(*modules):
    return own_sources.__wrapped__(*modules)


@pytest.mark.parametrize("changed", ["report.py", "lower/rule.py", "lower/deep/part.h"])
def test_any_changed_file_changes_the_hash_of_all(package, changed):
    before = key()
    (package / changed).write_text("two")
    assert key() != before


@pytest.mark.parametrize(
    "changed", ["lower/rule.py", "lower/deep/part.h", "facts/__init__.py", "facts/home.py", "shared.py"]
)
def test_what_a_module_imports_changes_its_hash(package, changed):
    before = key("precast.lower")
    (package / changed).write_text((package / changed).read_text() + "# two")
    assert key("precast.lower") != before


def test_what_a_module_does_not_import_does_not_change_its_hash(package):
    before = key("precast.lower")
    (package / "report.py").write_text("two")
    assert key("precast.lower") == before


def test_imports_for_type_checkers_do_not_count(package):
    assert import_closure("precast.report") == {"precast", "precast.report"}


def test_a_header_that_moves_changes_the_hash(package):
    before = key("precast.lower")
    (package / "lower/deep/part.h").rename(package / "lower/part.h")
    assert key("precast.lower") != before


def test_what_is_no_source_does_not_count(package):
    before = key()
    (package / "lower/__pycache__").mkdir()
    (package / "lower/__pycache__/rule.py").write_text("compiled")
    (package / "notes.txt").write_text("notes")
    assert key() == before


def native_key(monkeypatch, changed=None):
    """The native compiler's part of a key, as if one of our files had other content."""
    files = {file.name: file for file in sources_module._files()}
    if changed is not None:
        files[changed] = files[changed]._replace(digest="another")
    with monkeypatch.context() as patched:
        patched.setattr(sources_module, "_files", lambda: tuple(files.values()))
        return key("precast.native.compiler")


@pytest.mark.parametrize(
    "changed",
    [
        "ops/facts.py",
        "graph/nodes.py",
        "native/rules/pointwise.py",
        "native/passes/tidy.py",
        "native/targets/cpu/codegen/kernels.py",
        "native/targets/cpu/include/precast_math.h",
        "native/targets/cpu/support/matmul.cpp",
    ],
)
def test_what_makes_native_code_is_part_of_its_key(monkeypatch, changed):
    assert native_key(monkeypatch, changed) != native_key(monkeypatch)


@pytest.mark.parametrize(
    "changed", ["cli/doctor.py", "onnx/__init__.py", "report/explanation.py", "autograd/callable.py"]
)
def test_what_does_not_make_native_code_is_no_part_of_its_key(monkeypatch, changed):
    assert native_key(monkeypatch, changed) == native_key(monkeypatch)


NAMES = "import sys, precast.native.compiler; print(*(name for name in sys.modules if name.startswith('precast')))"


def test_the_closure_has_all_that_python_imports():
    told = subprocess.run([sys.executable, "-c", NAMES], check=True, capture_output=True, text=True).stdout
    assert "precast.native.rules.pointwise" in told
    assert set(told.split()) <= import_closure("precast.native.compiler")
