"""The cache of compiled results on disk: verified when read, bounded in size, private to the user. Needs no torch."""

from precast.cache.folder import CacheWarning
from precast.cache.keys import Indescribable, content_key, processor_identity
from precast.cache.sources import import_closure, own_sources
from precast.cache.store import Store, open_store

__all__ = [
    "CacheWarning",
    "Indescribable",
    "Store",
    "content_key",
    "import_closure",
    "open_store",
    "own_sources",
    "processor_identity",
]
