"""Files that outlive a process: a client's own vectors, version by version, and the server's last states.

A file is written under another name, flushed to the disk and renamed: after a crash it is whole or not there. It holds
the SHA-256 of all that is in it, so that a damaged one is known as such. A version of a client's vectors is the number
of rounds the server had done when it was made; a missing one is an error, never zeros. Versions are removed only below
those that the server's states, of which some are kept, may ask for.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.runs.storage.fence import PART
from fedsmoo.runs.storage.files import copy_shared, make_folder, on_host, sync_folder, write_durably
from fedsmoo.runs.storage.lease import locked

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
LONGEST, SESSION = 87, 100  # characters of a name, and of one with what makes a session of it
PATIENCE = 60.0  # seconds for which a server that was cut off from its network may not have noticed that
STATE, DIGEST = "server", "sha256"
ROUNDS = "rounds.jsonl"
STATES = re.compile(rf"(?:{STATE}(?:-\d+)?|\d+)\.safetensors")  # a server's, or versions of a client's vectors


class Missing(FedsmooError):
    """A version of a client's vectors that should be here is not, or is damaged."""


class Damaged(Exception):
    """A file that is not what was written."""


def checked_name(name: str, longest: int = LONGEST) -> str:
    """Return a name if it is safe as the name of a folder; ``FedsmooError`` if not."""
    if not NAME.fullmatch(name) or len(name) > longest:
        raise FedsmooError(f"{name!r} cannot name a federation: use up to {longest} letters, digits, '-', '_' and '.'")
    return name


@contextmanager
def alone(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep other servers out of a server's folder, until this process ends at the latest.

    Raises:
        FedsmooError: if one is at work there: two would write their rounds over each other's.
    """
    with ExitStack() as held:
        try:
            make_folder(folder)
            held.enter_context(locked(folder, patience))
        except BlockingIOError as e:
            raise FedsmooError(f"another server is at work in {folder}: stop it first, or choose another name") from e
        except OSError as e:
            raise FedsmooError(f"cannot write into {folder}: {e.strerror}") from e
        yield


class ClientStore:
    """The own vectors of one client of one federation, in ``root/session/client``."""

    def __init__(self, root: Path, session: str, client: int) -> None:
        self.folder = root / checked_name(session, SESSION) / str(int(client))

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
            remove_partial_files(self.folder)
            write_durably(self.path(version), seal(me, ""))
        except OSError as e:
            raise FedsmooError(f"cannot keep this client's vectors in {self.folder}: {e.strerror}") from e

    def load(self, version: int, lengths: Mapping[str, int]) -> Vectors:
        """Load the vectors of a version, of known lengths; raises ``Missing`` if they are not here, or damaged."""
        try:
            me = read_sealed(self.path(version))[0]
        except Damaged as e:
            raise Missing(f"version {version} of this client's vectors in {self.folder} is damaged: {e}") from e
        except FileNotFoundError as e:
            have = ", ".join(map(str, self.versions())) or "none"
            raise Missing(f"version {version} of this client's vectors is not in {self.folder} (there: {have})") from e
        except OSError as e:  # it is there, and may be readable in the next round: nothing is lost
            raise FedsmooError(f"cannot read {self.path(version)}: {e.strerror or e}") from e
        if {n: tuple(v.shape) for n, v in me.items()} != {n: (k,) for n, k in lengths.items()}:
            raise Missing(f"{self.path(version)} holds other vectors than this method keeps: it is another run's")
        return Vectors(**{n: me[n] for n in lengths})

    def prune(self, below: int) -> None:
        """Remove the versions that the server will never ask for again; what cannot be removed now is later."""
        for version in self.versions():
            if version < below:
                with suppress(OSError):
                    self.path(version).unlink()


class ServerStore:
    """The server's vectors and what it knows, in one file, so that both are of the same round; a few are kept."""

    def __init__(self, folder: Path, keep: int = 3) -> None:
        self.folder, self.keep = folder, keep
        self.skipped: list[str] = []  # of the last load: what newer states are damaged, and how

    def path(self, number: int) -> Path:
        return self.folder / f"{STATE}-{number:08d}.safetensors"

    def states(self) -> list[Path]:
        """Return the states on the disk, newest first; older federations had one, under another name.

        Raises:
            OSError: if the folder is there, but cannot be listed now (a glob would find nothing in it).
        """
        try:
            names = [n for n in os.listdir(self.folder) if n.startswith(STATE) and STATES.fullmatch(n)]
        except FileNotFoundError:
            return []
        return sorted(map(self.folder.joinpath, names), key=lambda p: int(p.stem.partition("-")[2] or -1), reverse=True)

    def save(self, number: int, server: Vectors, facts: dict[str, Any]) -> None:
        """Keep the state after so many rounds and remove the oldest; all stay if this fails."""
        try:
            make_folder(self.folder)
            write_durably(self.path(number), seal(server, json.dumps(facts)))
            for old in self.states()[self.keep :]:
                old.unlink(missing_ok=True)
        except OSError as e:
            raise FedsmooError(f"cannot keep the server's state in {self.folder}: {e.strerror}") from e

    def load(self) -> tuple[Vectors, dict[str, Any]] | None:
        """Load the newest state that is whole; ``None`` if there is none at all."""
        self.skipped = []
        try:
            states = self.states()
        except OSError as e:
            raise FedsmooError(f"cannot read {self.folder}: {e.strerror}; nothing was changed") from e
        remove_partial_files(self.folder)
        for path in states:
            try:
                tensors, text = read_sealed(path)
                return Vectors(**tensors), json.loads(text)
            except OSError as e:  # no damage: the state before would take its place, and it would be removed
                raise FedsmooError(f"cannot read {path}: {e.strerror or e}; nothing was changed") from e
            except (Damaged, ValueError) as e:
                self.skipped.append(f"{path} is damaged: {e}")
        if self.skipped:
            raise FedsmooError(f"{self.skipped[0]}; no other state is whole: move them away to start anew")
        return None

    def refuse_reports(self) -> None:
        """Refuse reports where there is no state: a state is there before the first round begins."""
        if missing_reports(self.folder / ROUNDS, 1) is None:
            raise FedsmooError(f"{self.folder / ROUNDS} reports rounds of which no state is there: move it away, too")

    def begin(self, number: int) -> None:
        """Make the folder's files those of a server that has done so many rounds: later ones were not finished."""
        try:
            for path in self.states():
                digits = path.stem.partition("-")[2]
                if digits and int(digits) > number:
                    path.unlink(missing_ok=True)
            path = self.folder / ROUNDS
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            kept = [line for line in lines if line.endswith(b"\n") and reported_round(line) <= number]
            if len(kept) < len(lines):
                write_durably(path, b"".join(kept))
        except OSError as e:
            raise FedsmooError(f"cannot write into {self.folder}: {e.strerror}") from e

    def record(self, line: str) -> None:
        """Append the report of a round, durably: a state is never ahead of the reports."""
        try:
            make_folder(self.folder)
            new = not (self.folder / ROUNDS).exists()
            with (self.folder / ROUNDS).open("ab") as f:
                f.write(f"{line}\n".encode())
                f.flush()
                os.fsync(f.fileno())
            if new:
                sync_folder(self.folder)
        except OSError as e:
            raise FedsmooError(f"cannot write {self.folder / ROUNDS}: {e.strerror}") from e


@dataclass(frozen=True)
class State:
    """A file of a federation that was checked: the rounds that the server had done, and what is wrong with it."""

    path: Path
    rounds: int
    damage: str | None = None

    def __str__(self) -> str:
        return f"{self.path.name}: {f'damaged, {self.damage}' if self.damage else f'usable, after round {self.rounds}'}"


def is_state_folder(folder: Path) -> bool:
    """Return whether a folder holds a server's states, or a client's vectors."""
    return folder.is_dir() and any(STATES.fullmatch(p.name) for p in folder.glob("*.safetensors"))


def verify(folder: Path) -> list[State]:
    """Check the checksum of every state in a folder of a federation, newest first; nothing on the disk changes.

    Last comes the file of reports beside a server's states, which has a line for every round of the newest whole one.
    """
    found = [verified(p) for p in folder.glob("*.safetensors") if STATES.fullmatch(p.name)]
    found.sort(key=lambda state: state.rounds, reverse=True)
    newest = next((s.rounds for s in found if s.damage is None and s.path.stem.startswith(STATE)), 0)
    return [
        *found,
        *([State(folder / ROUNDS, newest, damage)] if (damage := missing_reports(folder / ROUNDS, newest)) else []),
    ]


def verified(path: Path) -> State:
    """Check one state."""
    rounds = int(path.stem.removeprefix(STATE).removeprefix("-") or 0)
    try:
        text = read_sealed(path)[1]
        return State(path, json.loads(text)["number"] if path.stem.startswith(STATE) else rounds)
    except (OSError, Damaged) as e:
        return State(path, rounds, str(e))
    except (ValueError, KeyError, TypeError):
        return State(path, rounds, "its facts are not those of a server")


def reported_round(line: bytes) -> int:
    """Return which round a line reports; 0 if it does not say so, which no line of ours does."""
    try:
        return int(json.loads(line)["round"])
    except (ValueError, KeyError, TypeError):
        return 0


def missing_reports(path: Path, rounds: int) -> str | None:
    """Return in words what is missing in a file of reports of so many rounds; ``None`` if nothing is."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    whole = sum(line.endswith(b"\n") for line in lines)
    return f"it reports {whole} rounds of {rounds}" if whole < rounds else None


def digest_of(tensors: dict[str, Tensor], text: str) -> str:
    """Return the SHA-256 of named tensors and a text."""
    shapes = [(n, str(v.dtype), list(v.shape)) for n, v in sorted(tensors.items())]
    digest = hashlib.sha256(json.dumps([text, shapes]).encode())
    for _, v in sorted(tensors.items()):
        digest.update(v.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def seal(vectors: Vectors, text: str) -> bytes:
    """Return named vectors and a text as the content of a file with a checksum."""
    tensors = copy_shared({n: on_host(v) for n, v in vectors.items()})
    return save(tensors, {"fedsmoo": text, DIGEST: digest_of(tensors, text)})


def read_sealed(path: Path) -> tuple[dict[str, Tensor], str]:
    """Read what :func:`seal` made; ``Damaged`` if it is not the same. Files from before there were checksums pass."""
    path.open("rb").close()  # safetensors calls a file missing where this process has too many open
    try:
        with safe_open(path, "pt") as f:
            metadata = f.metadata() or {}
            tensors = {n: f.get_tensor(n) for n in f.keys()}  # noqa: SIM118 (not a dictionary)
    except SafetensorError as e:
        raise Damaged(f"it cannot be read ({e})") from e
    text, is_older = metadata.get("fedsmoo", ""), path.stem == STATE or not metadata
    if (DIGEST in metadata or not is_older) and metadata.get(DIGEST) != digest_of(tensors, text):
        raise Damaged("its checksum is another one")
    return tensors, text


def remove_partial_files(folder: Path) -> None:
    """Remove what a process that was killed had half written."""
    for left in folder.glob(f"*{PART}"):
        with suppress(OSError):
            left.unlink()
