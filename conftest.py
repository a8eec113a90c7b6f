"""Settings for every test of this repository, doctests of the package included."""

import os
import time

import pytest
from hypothesis import HealthCheck, settings

from tests.remembering_compiler import forget_old, put_first
from tests.thinned import mark_the_rest_slow

# Kernels for GPUs run on the CPU in tests; Triton asks for this when it is imported, as it is by some tests' settings.
os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_configure(config: pytest.Config) -> None:
    """Check programs after every pass; keep what tests compile in a folder of pytest, where the next run finds it."""
    os.environ.setdefault("PRECAST_VERIFY", "1")
    # On a busy machine, making examples takes as long as it takes.
    settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("patient")
    if getattr(config, "cache", None) is None:
        return
    if "PRECAST_CACHE_DIR" not in os.environ:
        folder = config.cache.mkdir("precast")
        folder.chmod(0o700)
        os.environ["PRECAST_CACHE_DIR"] = str(folder)
    objects = str(config.cache.mkdir("objects"))
    forget_old(objects, time.time())
    put_first(objects)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before tests are selected by their markers."""
    mark_the_rest_slow(items)
