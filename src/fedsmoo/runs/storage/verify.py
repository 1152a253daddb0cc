"""Check every checksum in a run folder, and say what of it can be used."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import as_word
from fedsmoo.data.files.plain import read_plain
from fedsmoo.runs.storage.files import refuse_changed, sha256_of_plain
from fedsmoo.runs.storage.manifest import manifests_in, metrics_name, read_manifest
from fedsmoo.runs.storage.mend import is_lost
from fedsmoo.runs.storage.names import CHECKPOINT, METRICS, MODEL, STARTED, SUMMARY
from fedsmoo.runs.storage.reader import Files, parse_records, read_config


@dataclass
class Verified:
    """What was found in a run folder."""

    folder: Path
    checked: int = 0  # files that are as they were written
    damaged: list[str] = field(default_factory=list)  # a line for each that is not
    checkpoints: list[int] = field(default_factory=list)  # the rounds of those that are whole, newest first
    finished: bool = False  # the results are there and whole
    usable: str = "nothing of it can be used"

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Count a file that is sound; note a ``FedsmooError`` as damage."""
        try:
            yield
            self.checked += 1
        except FedsmooError as e:
            if str(e) not in self.damaged:
                self.damaged.append(str(e))


def verify(folder: Path) -> Verified:
    """Check the files of a run against the checksums that the run kept; nothing on the disk changes.

    Raises:
        FedsmooError: if the folder holds no run.
    """
    found, manifests = Verified(folder), manifests_in(folder / CHECKPOINT)
    if not manifests and not (folder / SUMMARY).exists() and not (folder / METRICS).exists():
        read_config(folder)  # which says what is missing
    with found.noting():
        read_config(folder)
    if (folder / STARTED).exists():
        with found.noting():
            if is_lost(folder / STARTED):
                raise FedsmooError(f"{folder / STARTED} is empty or damaged")
    metrics = read_plain(folder / METRICS) or b""
    with found.noting():
        parse_records(metrics, str(folder / METRICS))
    for path in manifests:
        if len(found.checkpoints) < 2:  # one before these is not needed, and may have been half removed
            check_checkpoint(path, metrics, found)
    check_results(folder, metrics, found)
    found.usable = usability_in_words(found, begun=bool(manifests))
    return found


def check_checkpoint(path: Path, metrics: bytes, found: Verified) -> None:
    """Check a manifest, the files that it names, and that the metrics up to it are there."""
    before = len(found.damaged)
    with found.noting():
        manifest = read_manifest(path)
        for name, expected in manifest["files"].items():
            with found.noting():
                refuse_other(path.parent / name, expected)
        mark, copied = manifest["metrics"], metrics_name(manifest["round"]) in manifest["files"]
        if hashlib.sha256(metrics[: mark["bytes"]]).hexdigest() != mark["sha256"]:
            with found.noting():
                kept = "a checkpoint has a copy" if copied else "there is no copy"
                raise FedsmooError(f"{path.parent.parent / METRICS} was cut or changed; {kept}")
            before += copied  # which makes no checkpoint unusable
    if len(found.damaged) <= before:
        found.checkpoints.append(int(path.stem))


def check_results(folder: Path, metrics: bytes, found: Verified) -> None:
    """Check the summary of a finished run, and what it says of the model and the metrics."""
    if not (folder / SUMMARY).exists():
        return
    before = len(found.damaged)
    summary: dict[str, Any] = {}
    with found.noting():
        summary = Files(folder).facts(SUMMARY) or {}
    with found.noting():
        refuse_other(folder / MODEL, summary.get("model_sha256"))
    with found.noting():
        refuse_changed(folder / METRICS, metrics, summary.get("metrics_sha256"))
    found.finished = len(found.damaged) == before


def refuse_other(path: Path, expected: str | None) -> None:
    """Raise ``FedsmooError`` if a file is missing, or not what a SHA-256 says; older runs may have kept none."""
    if sha256_of_plain(path) != expected and expected is not None:
        raise FedsmooError(f"{path} is not as it was written (its SHA-256 differs)")


def usability_in_words(found: Verified, begun: bool) -> str:
    """Say what can be done with a run."""
    if found.finished:
        return "finished, and its results are whole"
    if (found.folder / SUMMARY).exists():
        return "finished, but its results are damaged" + (
            f"; the checkpoint of round {found.checkpoints[0]} is whole" if found.checkpoints else ""
        )
    if found.checkpoints:
        return f"'fedsmoo resume {as_word(found.folder)}' goes on after round {found.checkpoints[0]}"
    if begun or found.damaged:
        return "no checkpoint can be used: start the run again"
    return f"'fedsmoo resume {as_word(found.folder)}' starts at the first round: there is no checkpoint yet"
