"""Writes the stored file of the current format version: run once when the version changes, and commit the file.

It holds no native code, which would tie it to machines and to versions of the C interface.
"""

from pathlib import Path

import torch

import precast
from precast.artifact.archive import write_archive
from precast.artifact.manifest import FORMAT_VERSION
from precast.artifact.package import MANIFEST, open_package
from tests.packaging.conftest import Normalized
from tests.packaging.test_samples import changed_manifest

FOLDER = Path(__file__).parent / "stored"


def main() -> None:
    torch.manual_seed(0)
    path = FOLDER / f"package-{FORMAT_VERSION}.precast"
    precast.package(
        Normalized(),
        ({"x": torch.randn(5, 4)},),
        {"scale": torch.tensor(2.0)},
        path=path,
        dynamic_shapes={"inputs": {"x": {0: precast.Dim("batch", min=2, max=64)}}, "scale": None},
    )
    members = {name: bytes(data) for name, data in open_package(path).members.items() if not name.startswith("native/")}
    # Where the sources lay on the machine that made the file is nobody's business.
    members["program.json"] = members["program.json"].replace(f"{Path(__file__).parents[2]}/".encode(), b"")
    write_archive(path, {**members, MANIFEST: changed_manifest(members, targets=[])})


if __name__ == "__main__":
    main()
