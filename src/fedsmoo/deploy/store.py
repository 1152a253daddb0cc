"""Files that outlive a process: a client's own vectors, version by version, and the server's state.

A file is written under another name, flushed to the disk and renamed: after a crash it is whole or not there. A version
of a client's vectors is the number of rounds the server had done when it was made; a missing one is an error, never
zeros. Versions are removed only below the one that the server has acknowledged.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.runs.storage.files import make_folder, write_durably

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Missing(FedsmooError):
    """A version of a client's vectors that should be here is not, or is damaged."""


def checked_name(name: str) -> str:
    """Return a name if it is safe as the name of a folder; ``FedsmooError`` if not."""
    if not NAME.fullmatch(name):
        raise FedsmooError(f"{name!r} cannot name a federation: use letters, digits, '-', '_' and '.'")
    return name


class ClientStore:
    """The own vectors of one client of one federation, in ``root/session/client``."""

    def __init__(self, root: Path, session: str, client: int) -> None:
        self.folder = root / checked_name(session) / str(int(client))

    def path(self, version: int) -> Path:
        return self.folder / f"{version:08d}.safetensors"

    def versions(self) -> list[int]:
        """Return the versions on the disk, oldest first."""
        found = self.folder.glob("*.safetensors") if self.folder.is_dir() else []
        return sorted(int(p.stem) for p in found if p.stem.isdigit())

    def save(self, version: int, me: Vectors) -> None:
        """Keep a version, durably."""
        try:
            make_folder(self.folder)
            write_durably(self.path(version), save({n: on_host(v) for n, v in me.items()}))
        except OSError as e:
            raise FedsmooError(f"cannot keep this client's vectors in {self.folder}: {e.strerror}") from e

    def load(self, version: int, lengths: Mapping[str, int]) -> Vectors:
        """Load the vectors of a version that was kept, of known lengths; raises ``Missing`` if it is not here."""
        try:
            me = read_tensors(self.path(version))[0]
        except (OSError, SafetensorError) as e:
            have = ", ".join(map(str, self.versions())) or "none"
            raise Missing(f"version {version} of this client's vectors is not in {self.folder} (there: {have})") from e
        if {n: tuple(v.shape) for n, v in me.items()} != {n: (k,) for n, k in lengths.items()}:
            raise Missing(f"{self.path(version)} holds other vectors than this method keeps: it is another run's")
        return Vectors(**{n: me[n] for n in lengths})

    def prune(self, below: int) -> None:
        """Remove the versions that the server will never ask for again."""
        for version in self.versions():
            if version < below:
                self.path(version).unlink(missing_ok=True)


class ServerStore:
    """The server's vectors and what it knows, in one file, so that both are always of the same round."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "server.safetensors"

    def save(self, server: Vectors, facts: dict[str, Any]) -> None:
        """Replace the state; the one before stays if this fails."""
        try:
            make_folder(self.path.parent)
            content = save({n: on_host(v) for n, v in server.items()}, {"fedsmoo": json.dumps(facts)})
            write_durably(self.path, content)
        except OSError as e:
            raise FedsmooError(f"cannot keep the server's state in {self.path.parent}: {e.strerror}") from e

    def load(self) -> tuple[Vectors, dict[str, Any]] | None:
        """Load the state; ``None`` if there is none."""
        try:
            tensors, metadata = read_tensors(self.path)
            return Vectors(**tensors), json.loads(metadata["fedsmoo"])
        except FileNotFoundError:
            return None
        except (OSError, SafetensorError, KeyError, ValueError) as e:
            raise FedsmooError(f"{self.path} cannot be read: {e}; move it away to start anew") from e


def on_host(v: Tensor) -> Tensor:
    return v.detach().cpu().contiguous().clone()


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and the metadata of a file, names in the order in which they were written."""
    with safe_open(path, "pt") as f:
        metadata = f.metadata() or {}
        return {n: f.get_tensor(n) for n in f.keys()}, metadata  # noqa: SIM118 (not a dictionary)
