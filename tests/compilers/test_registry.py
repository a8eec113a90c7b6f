"""Backends by name."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest

from precast import backend as registry
from precast.backend import Backend
from precast.compilers import get_backend, list_backends, nop, register_backend
from precast.errors import InputTypeError, InputValueError


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})


@pytest.fixture
def offer(monkeypatch):
    """Return ``offer(name, "module:attribute")``, which acts as an installed package's entry point."""
    offered = []
    monkeypatch.setattr(registry, "entry_points", lambda group: [entry for entry in offered if entry.group == group])

    def add(name, value):
        offered.append(EntryPoint(name, value, "precast.backends"))

    return add


def compiler(graph_module, example_inputs):
    """Run it as it is.

    And no more.
    """
    return graph_module


a_backend = Backend("other", compiler, bw_compiler=nop)


@pytest.mark.parametrize("name", ["nop", "print", "debug", "debug_nop", "ts"])
def test_built_in_backend_is_found(name):
    assert name in list_backends()
    assert callable(get_backend(name).fw_compiler)


def test_registered_backend_is_found_with_its_choices():
    assert register_backend("mine", bw_compiler=nop)(compiler) is compiler
    assert get_backend("mine") == Backend("mine", compiler, bw_compiler=nop)
    assert "mine" in list_backends()


def test_compiler_stands_for_itself():
    assert get_backend(compiler) == Backend("compiler", compiler)


def test_backend_object_is_returned_as_it_is():
    assert get_backend(a_backend) is a_backend


def test_description_is_the_first_docstring_line():
    assert get_backend(compiler).description == "Run it as it is."
    assert get_backend(lambda graph_module, example_inputs: graph_module).description == ""


@pytest.mark.parametrize("name", ["nop", "mine"])
def test_taken_name_is_refused(name):
    register_backend("mine")(compiler)
    with pytest.raises(InputValueError, match="is there already"):
        register_backend(name)(compiler)


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(InputValueError, match=r"did you mean 'print'\?"):
        get_backend("pritn")


def test_unknown_name_without_a_near_one_lists_all():
    with pytest.raises(ValueError, match="known backends: debug, debug_nop, interpret") as caught:
        get_backend("zzzzzz")
    assert "did you mean" not in str(caught.value)


def test_decorator_without_a_name_is_explained():
    with pytest.raises(InputTypeError, match="must be a non-empty string"):
        register_backend(compiler)


@pytest.mark.parametrize("act", [lambda: register_backend("mine")(3), lambda: get_backend(3)])
def test_something_uncallable_is_refused(act):
    with pytest.raises(InputTypeError, match="must be callable, not int"):
        act()


def test_installed_backend_is_found(offer):
    offer("installed", "precast.debug.unchanged:nop")
    assert "installed" in list_backends()
    assert get_backend("installed").fw_compiler is nop


@pytest.mark.parametrize(("value", "told"), [("no_such_module:x", "no_such_module"), ("precast.backend:x", "'x'")])
def test_installed_backend_is_loaded_only_when_asked_for(offer, value, told):
    offer("broken", value)
    assert "broken" in list_backends()
    with pytest.raises(InputValueError, match=rf"backend 'broken' cannot be loaded: .*{told}"):
        get_backend("broken")


def test_installed_name_is_refused_for_registration(offer):
    offer("installed", "precast.debug.unchanged:nop")
    with pytest.raises(InputValueError, match="is there already"):
        register_backend("installed")(compiler)


def test_two_installed_backends_of_one_name_are_refused(offer):
    offer("twice", "somewhere:one")
    offer("twice", "somewhere:else")
    with pytest.raises(InputValueError, match=r"defined more than once: somewhere:one, somewhere:else"):
        get_backend("twice")


def test_our_names_mean_ours_whatever_is_installed(offer):
    offer("nop", "somewhere:else")
    assert get_backend("nop").fw_compiler is nop
    assert list_backends().count("nop") == 1


def test_installed_thing_that_is_no_compiler_is_refused(offer):
    offer("wrong", "precast.backend:ENTRY_POINT_GROUP")
    with pytest.raises(InputTypeError, match=r"backend 'wrong', defined as precast\.backend:ENTRY_POINT_GROUP"):
        get_backend("wrong")


def test_listing_backends_does_not_import_torch():
    code = "import sys; sys.modules['torch'] = None; from precast.compilers import list_backends; list_backends()"
    subprocess.run([sys.executable, "-c", code], check=True)
