import warnings

import pytest

from precast.cache import CacheWarning, Store, content_key


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "cache", limit=2**20)


@pytest.fixture
def key():
    return content_key(["a key"])


@pytest.fixture
def told():
    """The cache's warnings, every one of them."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", CacheWarning)
        yield caught
