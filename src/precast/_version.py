"""The version, and the versions of torch that it is tested with."""

__version__ = "0.2.0"
# Every release from the first to the last of these: `make test-torch VERSION=2.11`.
TESTED_TORCH = ((2, 11), (2, 13))
