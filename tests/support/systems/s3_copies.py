"""Copies of folders between a local file system and an object store."""

from pathlib import Path

from wakeroll_pipeline.storage import small_files
from wakeroll_pipeline.storage.place import Place


def upload(folder: Path, to: Place) -> None:
    """Copy a local folder into a store, without locks and checksums of the local file system."""
    for file in folder.rglob("*"):
        if file.is_file() and not file.name.endswith((".crc", ".lock")):
            small_files.write(to.child(*file.relative_to(folder).parts), file.read_bytes())


def download(folder: Place, to: Path) -> None:
    """Copy a folder of a store to a local folder."""
    for name in small_files.names(folder):
        place = folder / name
        content = small_files.read(place)
        if content is None:
            download(place, to / name)
        else:
            to.mkdir(parents=True, exist_ok=True)
            (to / name).write_bytes(content)
