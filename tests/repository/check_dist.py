"""Installs what ``make dist`` built, the wheel and the sdist, each into an empty environment, and uses it there.

``python -m tests.repository.check_dist dist``; needs torch here, to make a package that is then run where torch is not.
"""

import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

import torch

import precast
from tests.repository.sources import ROOT

PROGRAM = """
import sys
import numpy
import precast.runtime
from precast.cli.paths import installed_paths
model = precast.runtime.load(sys.argv[1])
assert model(numpy.ones((2, 4), numpy.float32)).shape == (2, 3)
assert (installed_paths()["include"] / "precast.h").is_file()
assert (installed_paths()["cmake"] / "precastConfig.cmake").is_file()
assert "torch" not in sys.modules
try:
    import torch
except ImportError:
    pass
else:
    sys.exit("torch is here: the environment is not empty")
"""


def check(distribution: Path, package: Path, folder: Path) -> None:
    """Install one file and run the package with it."""
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", str(distribution)]
    commands = [
        [python, *install],
        [python, "-c", PROGRAM, str(package)],
        *([folder / "bin" / "precast", *words] for words in (
            ["--version"], ["doctor", "--run-only"], ["verify", str(package)], ["inspect", str(package), "--json"],
        )),
    ]  # fmt: skip
    for command in commands:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{distribution.name}: {' '.join(map(str, command[1:4]))} failed\n{done.stdout}{done.stderr}")
    print(f"{distribution.name}: installs, and runs a package without torch")


def check_contents(wheel: Path) -> None:
    """Every file of the package that is committed is in the wheel."""
    listing = subprocess.run(["git", "ls-files", "src/precast"], cwd=ROOT, capture_output=True, text=True, check=True)
    wanted = {name.removeprefix("src/") for name in listing.stdout.splitlines()}
    if missing := sorted(wanted - set(zipfile.ZipFile(wheel).namelist())):
        sys.exit(f"{wheel.name} lacks {', '.join(missing[:5])} and {max(0, len(missing) - 5)} more")


def main(folder: str) -> None:
    built = sorted([*Path(folder).absolute().glob("*.whl"), *Path(folder).absolute().glob("*.tar.gz")])
    if len(built) != 2:
        sys.exit(f"{folder} holds {len(built)} files, not a wheel and an sdist")
    check_contents(next(each for each in built if each.suffix == ".whl"))
    with tempfile.TemporaryDirectory() as scratch:
        example = (torch.nn.Linear(4, 3), (torch.ones(2, 4),))
        package = precast.package(*example, path=Path(scratch) / "linear.precast", targets=("x86-64-v3",))
        for number, each in enumerate(built):
            check(each, package, Path(scratch) / f"environment-{number}")


if __name__ == "__main__":
    main(sys.argv[1])
