import re
from pathlib import Path

import pytest

from precast.errors import InputTypeError, OptionError
from precast.options import Options, as_options


@pytest.fixture(autouse=True)
def _empty_environment(monkeypatch, tmp_path):
    for variable in ["VERIFY", "CACHE_DIR", "CACHE_BYTES", "RANDOM", "CXX", "DEBUG"]:
        monkeypatch.delenv(f"PRECAST_{variable}", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_an_empty_environment_gives_the_defaults():
    options = as_options(None)
    assert options == Options()
    assert (options.verify, options.random, options.compiler, options.debug) == ("results", "philox", None, False)
    assert options.cache_bytes == 4 * 2**30


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("PRECAST_VERIFY", "off", "verify", "off"),
        ("PRECAST_VERIFY", "1", "verify", "passes"),
        ("PRECAST_VERIFY", "results", "verify", "results"),
        ("PRECAST_CACHE_DIR", "/kernels", "cache_directory", Path("/kernels")),
        ("PRECAST_CACHE_BYTES", "500M", "cache_bytes", 500 * 2**20),
        ("PRECAST_CACHE_BYTES", "1024", "cache_bytes", 1024),
        ("PRECAST_CACHE_BYTES", "2 GiB", "cache_bytes", 2 * 2**30),
        ("PRECAST_RANDOM", "eager", "random", "eager"),
        ("PRECAST_CXX", "clang++", "compiler", "clang++"),
        ("CXX", "ccache g++", "compiler", "ccache g++"),
        ("PRECAST_DEBUG", "Yes", "debug", True),
    ],
)
def test_a_variable_sets_its_option(monkeypatch, variable, text, name, value):
    monkeypatch.setenv(variable, text)
    assert getattr(Options.from_environment(), name) == value


def test_our_own_compiler_variable_wins_over_the_general_one(monkeypatch):
    monkeypatch.setenv("CXX", "g++")
    monkeypatch.setenv("PRECAST_CXX", "clang++")
    assert Options.from_environment().compiler == "clang++"


def test_an_empty_variable_counts_as_not_set(monkeypatch):
    monkeypatch.setenv("PRECAST_VERIFY", "")
    assert Options.from_environment().verify == "results"


def test_an_override_wins_over_its_variable_even_if_that_is_wrong(monkeypatch):
    monkeypatch.setenv("PRECAST_RANDOM", "dice")
    assert Options.from_environment(random="eager").random == "eager"


def test_a_mapping_is_laid_over_the_environment(monkeypatch):
    monkeypatch.setenv("PRECAST_RANDOM", "eager")
    options = as_options({"verify": False, "cache_bytes": "1K"})
    assert (options.verify, options.cache_bytes, options.random) == ("off", 1024, "eager")


def test_options_pass_through_as_they_are(monkeypatch):
    options = Options(verify=False)
    monkeypatch.setenv("PRECAST_VERIFY", "1")
    assert as_options(options) is options


def test_the_cache_lies_in_the_users_cache_folder(tmp_path):
    assert Options().cache_directory == tmp_path / "precast"


def test_a_relative_xdg_folder_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "somewhere")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert Options().cache_directory == tmp_path / ".cache" / "precast"


def test_the_cache_folder_is_absolute_and_may_start_at_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert as_options({"cache_directory": "~/kernels"}).cache_directory == tmp_path / "kernels"
    assert as_options({"cache_directory": "kernels"}).cache_directory == Path.cwd() / "kernels"


def test_an_unknown_option_suggests_the_right_name():
    with pytest.raises(OptionError, match=r"no option 'verfy'(.|\n)*did you mean 'verify'\?"):
        as_options({"verfy": True})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("verify", "maybe"),
        ("verify", None),
        ("cache_directory", ""),
        ("cache_directory", 3),
        ("cache_bytes", "lots"),
        ("cache_bytes", -1),
        ("cache_bytes", True),
        ("random", "dice"),
        ("compiler", " "),
        ("compiler", "g++ '"),
        ("compiler", 3),
        ("debug", 2),
    ],
)
def test_a_value_without_meaning_is_refused(name, value):
    with pytest.raises(OptionError, match=re.escape(f"{name} cannot be {value!r}")):
        Options(**{name: value})


def test_a_misspelled_value_suggests_the_right_one_and_names_the_variable(monkeypatch):
    monkeypatch.setenv("PRECAST_RANDOM", "philx")
    with pytest.raises(OptionError, match=r"environment variable PRECAST_RANDOM(.|\n)*did you mean 'philox'\?"):
        Options.from_environment()


def test_what_is_no_options_at_all_is_refused():
    with pytest.raises(InputTypeError, match="options cannot be 3"):
        as_options(3)
