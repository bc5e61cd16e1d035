"""What an installation puts on the disk, counted alike for both: every file of its packages but compiled caches."""

import sys
from importlib.metadata import Distribution, distributions
from pathlib import Path

import msgspec

TOOLS = {"pip", "setuptools"}  # what a fresh environment has before anything is installed


class Installed(msgspec.Struct, frozen=True):
    size: int
    packages: int
    lines: int


def hermes(environment: Path) -> Installed:
    found = _packages(environment)
    own = next(package for package in found if package.name == "hermes-agent")
    return Installed(_size(found), len(found), _lines(_files([own])))


def legato(root: Path) -> Installed:
    """Installed from this folder, so its own files are those of the source."""
    found = _packages(Path(sys.prefix))
    own = [path for path in (root / "src").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    return Installed(_size(found) + sum(path.stat().st_size for path in own), len(found), _lines(own))


def _packages(environment: Path) -> list[Distribution]:
    [folder] = environment.glob("lib/python*/site-packages")
    return [package for package in distributions(path=[str(folder)]) if package.name not in TOOLS]


def _files(packages: list[Distribution]) -> list[Path]:
    paths = [Path(str(file.locate())) for package in packages for file in package.files or [] if file.suffix != ".pyc"]
    return [path for path in paths if path.is_file()]


def _size(packages: list[Distribution]) -> int:
    return sum(path.stat().st_size for path in _files(packages))


def _lines(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths if path.suffix in {".py", ".sql"})
