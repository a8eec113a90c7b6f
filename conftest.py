"""Settings for every test of this repository, doctests of the package included."""

import os

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests compile out of the user's cache folder, in pytest's own, where the next run finds it again."""
    if config.cache is not None and "PRECAST_CACHE_DIR" not in os.environ:
        folder = config.cache.mkdir("precast")
        folder.chmod(0o700)
        os.environ["PRECAST_CACHE_DIR"] = str(folder)
