"""Put back a run's config and notes of its beginning, where they are lost, from what its checkpoints hold of them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.data.files.plain import parse_table, read_plain
from fedsmoo.runs.origin.identity import config_of
from fedsmoo.runs.settings.toml import LostSettings
from fedsmoo.runs.storage.files import DiskError, reason, write_durably
from fedsmoo.runs.storage.folder import lossless_text, remove_files
from fedsmoo.runs.storage.manifest import manifests_in, read_manifest
from fedsmoo.runs.storage.names import CHECKPOINT, CONFIG, METRICS, STARTED
from fedsmoo.runs.storage.reader import read_config

BESIDE = ("config", "task", "started")  # what a manifest says of a run besides the notes of its beginning


def mend(path: Path) -> list[str]:
    """Put back the config and the notes of a run that were lost, as by a power cut; a line for each says so.

    Raises:
        LostSettings: if no checkpoint holds the settings either.
        DiskError: if they cannot be written.
    """
    about, notes = newest_about(path), []
    try:
        if about is not None and is_lost(path / STARTED):  # before the config: where that is, everything is
            write_durably(path / STARTED, json.dumps(started_in(about), indent=2) + "\n")
            notes.append(f"{path / STARTED} was lost: it is put back from a checkpoint")
        elif about is None and is_empty(path / STARTED):
            write_durably(path / STARTED, "{}\n")
            notes.append(f"{path / STARTED} was lost: how the run was begun is not known any more")
        try:
            read_config(path)
        except LostSettings as e:
            if about is None:
                raise LostSettings(f"{e}, and no checkpoint holds the settings: start the run again") from e
            write_durably(path / CONFIG, lossless_text(config_of(about["config"])))
            notes.append(f"{path / CONFIG} was lost: it is put back from a checkpoint")
    except OSError as e:
        raise DiskError(f"cannot write into {path}: {reason(e)}") from e
    return notes


def mend_or_forget(path: Path) -> list[str] | None:
    """Mend a run as :func:`mend` does; ``None`` if there is no config or checkpoint, so that the run may begin here.

    What an empty config leaves behind is removed: without a checkpoint a run begins at its first round anyway.
    """
    try:
        return mend(path)
    except LostSettings:
        if (path / CONFIG).is_file():
            remove_files(path, METRICS, CONFIG)
        return None


def newest_about(path: Path) -> dict[str, Any] | None:
    """Return what the newest manifest that is whole says of its run; its other files are not looked at."""
    for manifest in manifests_in(path / CHECKPOINT):
        with suppress(FedsmooError):
            about = read_manifest(manifest)["about"]
            if isinstance(about.get("config"), dict):
                return about
    return None


def started_in(about: dict[str, Any]) -> dict[str, Any]:
    """Return the notes of a run's beginning in a manifest; older ones hold only those that decide the last bits."""
    return about.get("started") or {k: v for k, v in about.items() if k not in BESIDE}


def is_lost(path: Path) -> bool:
    """Return whether a file with a JSON object is missing, empty or damaged."""
    content = read_plain(path)
    try:
        return content is None or not isinstance(parse_table(content, path), dict)
    except FedsmooError:
        return True


def is_empty(path: Path) -> bool:
    """Return whether a file is there and holds nothing, as after a power cut."""
    content = read_plain(path)
    return content is not None and not content.strip(b"\0 \n")
