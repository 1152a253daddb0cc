"""The manifests of checkpoints: which there are, what they name, and which owner of the run wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError
from fedsmoo.data.files.plain import DiskError
from fedsmoo.runs.storage.fence import fence
from fedsmoo.runs.storage.files import read_sealed

FORMAT = "fedsmoo checkpoint 1"


def metrics_name(number: int) -> str:
    return f"{number:06d}-metrics.jsonl"


def manifests_in(folder: Path) -> list[Path]:
    """Return the manifests of a folder, newest first."""
    found = [p for p in folder.glob("*.json") if p.stem.isdigit()] if folder.is_dir() else []
    return sorted(found, key=lambda p: int(p.stem), reverse=True)


def read_or_empty(path: Path) -> dict[str, Any]:
    """Read a manifest; empty if it is damaged, but ``DiskError`` if the disk does not answer."""
    try:
        return read_manifest(path)
    except DiskError:
        raise
    except FedsmooError:
        return {}


def named_by(path: Path) -> set[str]:
    """Return the files that a checkpoint consists of; those of a damaged one are not known."""
    manifest = read_or_empty(path)
    return {path.name, *manifest["files"]} if manifest else set()


def epoch_of(path: Path) -> int:
    """Return which owner of the run wrote a manifest; 0 if it does not say."""
    epoch = read_or_empty(path).get("epoch")
    return epoch if isinstance(epoch, int) else 0


def later_manifests(folder: Path) -> list[Path]:
    """Return the manifests that later owners of the run wrote than the one that works here."""
    mine = fence().epoch
    return [] if mine is None else [p for p in manifests_in(folder) if epoch_of(p) > mine]


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest; ``FedsmooError`` if it is damaged or of another format."""
    return read_sealed(path, FORMAT)
