"""Runs one entry of a package without torch: ``python -m … FILE ENTRY GIVEN.npz RESULTS.npz``."""

import sys

import numpy as np

import precast.runtime
from precast.errors import PrecastError


def main(path: str, entry: str, given: str, results: str) -> None:
    sys.modules["torch"] = None  # type: ignore[assignment]
    with np.load(given) as arrays:
        inputs = [arrays[name] for name in arrays.files]
    try:
        outputs = precast.runtime.load(path)[entry](*inputs)
    except PrecastError as error:
        print("PrecastError", error)
        sys.exit(1)
    np.savez(results, *outputs)


if __name__ == "__main__":
    main(*sys.argv[1:])
