"""A file that a command writes: one that is there already is replaced only on purpose."""

from pathlib import Path

from legato.errors import BadInput


def check_free(path: Path, force: bool) -> None:
    """Refuse what cannot be written over, or should not be."""
    if path.is_dir():
        raise BadInput(f"{path} cannot be written: it is a folder. Name the file that is to be written.")
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} cannot be written: it is no file. Name one that is to be written.")
    if path.exists() and not force:
        raise BadInput(f"{path} is there already. Choose another name, or give --force to replace it.")
