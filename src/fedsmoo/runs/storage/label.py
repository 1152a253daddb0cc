"""What a sweep's file calls the method of a run, kept beside the run: it is a name, and no setting of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from fedsmoo.runs.storage.checkpoint import PART, DiskError, reason
from fedsmoo.runs.storage.folder import bytes_of

LABEL = "label.txt"


def read_label(folder: Path) -> str | None:
    """What the method of a run is called; none if that is the method's own name."""
    return bytes_of(folder / LABEL).decode("utf-8", "replace").strip() or None


def write_label(folder: Path, labels: Mapping[str, str]) -> None:
    """Keep what the method is called now, of ``labels`` by the folder's name; several processes may do so at once."""
    label = labels.get(folder.name)
    if read_label(folder) == label:
        return
    part = folder / f".{LABEL}.{os.getpid()}{PART}"
    try:
        part.write_text(f"{label or ''}\n", encoding="utf-8")
        os.replace(part, folder / LABEL)
    except OSError as e:
        raise DiskError(f"cannot write into {folder}: {reason(e)}") from e
