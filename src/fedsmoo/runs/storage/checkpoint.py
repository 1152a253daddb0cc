"""Checkpoints: everything a run needs to go on, written whole or not at all.

A checkpoint is a manifest, ``checkpoint/000012.json``, that names files beside it and their SHA-256: the server's
vectors, and shards with client rows. Checkpoints take turns in two generations that have no file in common, so that
either suffices whatever happens to the other: a save writes the rows that changed since the save before the last; the
others stay in older shards of the same generation. Every file is written under another name, flushed to the disk and
renamed, the manifest last; the checkpoint of two saves before is removed only when the new one is complete. Random
streams are named by seed, round and client, so a round number is all that is needed of them; metrics lie in
``metrics.jsonl``, of which the manifest holds the length and the hash, and of which a copy lies beside it, should that
file be cut or changed.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from fedsmoo.core import FedsmooError, Vectors
from fedsmoo.engines.client_state.table import ClientTable
from fedsmoo.runs.storage.fence import fence, partial_name
from fedsmoo.runs.storage.files import (
    DiskError,
    copy_aligned,
    copy_shared,
    make_folder,
    on_host,
    reason,
    renamed_at_the_end,
    seal,
    sha256_of,
    sha256_of_plain,
    sync_folder,
    write_durably,
)
from fedsmoo.runs.storage.manifest import FORMAT, later_manifests, manifests_in, metrics_name, named_by, read_manifest

# A shard of which less than this share is still needed is rewritten with the next save: dead rows must not pile up.
LIVE_SHARE = 0.5
SHARE = 0.04  # of the time may go into saving


@dataclass
class Pace:
    """Decide when to save: so seldom that saving takes less than ``share`` of the time, or every so many rounds."""

    every: int | None = None  # rounds; 0: never
    share: float = SHARE
    cost: float = 0.05  # seconds of a save, before one was timed
    rate: float = 5e-9  # seconds a byte
    since: float = field(default_factory=time.perf_counter)

    def due(self, rounds: int, size: int) -> bool:
        """Whether to save ``size`` bytes after so many rounds."""
        if self.every is not None:
            return self.every > 0 and rounds % self.every == 0
        return (time.perf_counter() - self.since) * self.share > max(self.cost, self.rate * size)

    def learn(self, began: float, size: int) -> None:
        """Learn what saving costs from a save of ``size`` bytes that began at a time and has just ended."""
        self.since = time.perf_counter()
        self.cost = self.since - began
        self.rate = self.cost / max(size, 1)


@dataclass(frozen=True)
class Mark:
    """How much of the metrics file belongs to a checkpoint."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk; rows are read one at a time."""

    folder: Path
    manifest: dict[str, Any]

    @property
    def round(self) -> int:
        return self.manifest["round"]

    @property
    def about(self) -> dict[str, Any]:
        return self.manifest["about"]

    @property
    def metrics(self) -> Mark:
        return Mark(**self.manifest["metrics"])

    def lines(self) -> bytes:
        """Return the copy of the metrics up to this checkpoint; empty in a checkpoint that has none."""
        name = metrics_name(self.round)
        return (self.folder / name).read_bytes() if name in self.manifest["files"] else b""

    def server(self) -> Vectors:
        with safe_open(self.folder / self.manifest["server"], "pt") as f:
            return Vectors(**{n: copy_aligned(f.get_tensor(n)) for n in f.keys()})  # noqa: SIM118 (not a dictionary)

    def rows(self) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """Yield every client's own vectors, shard by shard."""
        by_shard: dict[str, list[int]] = {}
        for client, shard in self.manifest["rows"].items():
            by_shard.setdefault(shard, []).append(int(client))
        for shard, clients in by_shard.items():
            with safe_open(self.folder / shard, "pt") as f:
                names = sorted({k.partition(".")[2] for k in f.keys()})  # noqa: SIM118
                for client in sorted(clients):
                    yield client, {n: copy_aligned(f.get_tensor(f"{client}.{n}")) for n in names}


@dataclass(frozen=True)
class Generation:
    """Where one generation of checkpoints has the clients' rows, and which of them changed since."""

    rows: dict[int, str] = field(default_factory=dict)  # client -> shard
    hashes: dict[str, str] = field(default_factory=dict)
    pending: set[int] = field(default_factory=set)


class Checkpoints:
    """The checkpoints of one run. ``about`` describes the run, for whoever resumes it to compare."""

    def __init__(self, folder: Path, about: dict[str, Any]) -> None:
        self.folder, self.about = folder, about
        self.next, self.newest = Generation(), Generation()  # they take turns
        self.last: int | None = None

    def adopt(self, saved: Checkpoint) -> None:
        """Continue after a checkpoint that was loaded: its shards need not be written again.

        The other generation may be damaged, or share shards with it (as before there were two): the next save begins
        it anew, with every row.
        """
        rows = {int(c): s for c, s in saved.manifest["rows"].items()}
        self.newest = Generation(rows, dict(saved.manifest["files"]))
        self.next = Generation(pending=set(rows))
        self.last = saved.round

    def _take_changes(self, table: ClientTable) -> None:
        """Note for both generations which rows have changed."""
        changed = table.take_changes()
        self.next.pending.update(changed)
        self.newest.pending.update(changed)

    def bytes_to_write(self, server: Vectors, table: ClientTable) -> int:
        """Estimate how many bytes the next save writes."""
        self._take_changes(table)
        vector = server.w.numel() * server.w.element_size()
        return vector * (len(server.names()) + len(self.next.pending) * len(table.names))

    def save(self, number: int, server: Vectors, table: ClientTable, metrics: Mark, lines: bytes = b"") -> None:
        """Write a checkpoint after ``number`` rounds; ``DiskError`` if that fails, and the one before is untouched."""
        self._take_changes(table)
        try:
            written = self._write(number, server, table, metrics, lines)
        except (OSError, SafetensorError) as e:
            before = "no checkpoint before it" if self.last is None else f"the one of round {self.last} is untouched"
            raise DiskError(
                f"cannot save the checkpoint of round {number} in {self.folder}: {reason(e)}; {before}. "
                "Make room, then go on with: fedsmoo resume " + str(self.folder.parent)
            ) from e
        self.next, self.newest, self.last = self.newest, written, number
        self._prune(keep=2)

    def _write(self, number: int, server: Vectors, table: ClientTable, metrics: Mark, lines: bytes) -> Generation:
        """Write the files of a checkpoint, its manifest last; return where the clients' rows are then."""
        with fence().held():
            make_folder(self.folder)
        stem, turn, rows = f"{number:06d}", self.next, dict(self.next.rows)
        server_name, rows_name = f"{stem}-server.safetensors", f"{stem}-rows.safetensors"
        files = {server_name: {n: on_host(v) for n, v in server.items()}}
        if changed := self._rows_to_write(table):
            files[rows_name] = changed
            rows.update({int(key.partition(".")[0]): rows_name for key in changed})
        fresh = {name: write_tensors(self.folder / name, copy_shared(tensors)) for name, tensors in files.items()}
        if lines:
            write_durably(self.folder / metrics_name(number), lines, sync=False)
            fresh[metrics_name(number)] = hashlib.sha256(lines).hexdigest()
        used = {server_name, metrics_name(number), *rows.values()}
        hashes = {n: h for n, h in {**turn.hashes, **fresh}.items() if n in used}
        manifest = {
            "format": FORMAT,
            "round": number,
            "epoch": fence().epoch or 0,
            "about": self.about,
            "server": server_name,
            "rows": {str(c): s for c, s in sorted(rows.items())},
            "files": hashes,
            "metrics": {"bytes": metrics.bytes, "sha256": metrics.sha256},
        }
        sync_folder(self.folder)  # where a manifest is after a power cut, all files that it names are
        write_durably(self.folder / f"{stem}.json", seal(manifest))
        return Generation(rows, hashes)

    def _rows_to_write(self, table: ClientTable) -> dict[str, Tensor]:
        """Return the clients' rows that the next save writes, as ``CLIENT.NAME``; a generation begins with all."""
        wanted, everyone = self.next.pending | self._thin(self.next), not self.next.hashes
        if not table.names or not (everyone or wanted):
            return {}
        found = ((c, row) for c, row in table.items() if everyone or c in wanted)
        return {f"{c}.{n}": on_host(v) for c, row in found for n, v in row.items()}

    def _thin(self, turn: Generation) -> set[int]:
        """Return the clients whose rows lie in shards that are mostly obsolete."""
        needed: dict[str, list[int]] = {}
        for client, shard in turn.rows.items():
            if client not in turn.pending:
                needed.setdefault(shard, []).append(client)
        written = {s: self._rows_in(s) for s in needed}
        return {c for s, clients in needed.items() if len(clients) < LIVE_SHARE * written[s] for c in clients}

    def _rows_in(self, shard: str) -> int:
        with safe_open(self.folder / shard, "pt") as f:
            return len({k.partition(".")[0] for k in f.keys()})  # noqa: SIM118

    def _prune(self, keep: int) -> None:
        """Remove what neither of the newest ``keep`` manifests needs, nor one of a later owner of the run.

        While the disk does not answer, nothing is removed: the next save does so.
        """
        with suppress(OSError, DiskError), fence().held():
            there, later = manifests_in(self.folder), later_manifests(self.folder)
            manifests = [p for p in there if self.last is None or int(p.stem) <= self.last]
            needed = {name for path in [*manifests[:keep], *later] for name in named_by(path)}
            for path in self.folder.iterdir():
                if path.name not in needed:
                    path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete all checkpoints of a run that has finished, unless a later owner of it wrote one.

        What cannot be removed stays: the run is complete.
        """
        with suppress(OSError, DiskError), fence().held():
            if later_manifests(self.folder):
                return
            sync_folder(self.folder)  # so that nothing that was pruned comes back
            for names in ("[0-9]*.json", "*"):  # manifests first: a half-removed checkpoint must not look whole
                for path in self.folder.glob(names):
                    path.unlink()
                sync_folder(self.folder)
            self.folder.rmdir()  # not if a process that was taken over has just begun a file there


def newest(folder: Path, accept: Callable[[Checkpoint], None] = lambda _: None) -> tuple[Checkpoint | None, list[str]]:
    """Return the newest checkpoint whose hashes are right, and a line for each newer one whose are not.

    ``accept`` may refuse one for another reason by raising a ``FedsmooError``. Where all that was there has given way
    to newer ones meanwhile, because the run goes on, those are looked at. ``DiskError`` if there is none because the
    disk does not answer.
    """
    problems, silent, there = list[str](), None, manifests_in(folder)
    for path in there:
        try:
            manifest = read_manifest(path)
            for name, expected in manifest["files"].items():
                if sha256_of_plain(folder / name) != expected:
                    raise FedsmooError(f"{folder / name} is not as it was written (its SHA-256 differs)")
            saved = Checkpoint(folder, manifest)
            accept(saved)
            return saved, problems
        except FedsmooError as e:
            problems.append(f"checkpoint of round {int(path.stem)} cannot be used: {e}")
            silent = e if isinstance(e, DiskError) else silent
    if silent is not None:
        raise silent
    return (None, problems) if manifests_in(folder)[:1] == there[:1] else newest(folder, accept)


def write_tensors(path: Path, tensors: dict[str, Tensor], note: dict[str, str] | None = None) -> str:
    """Write tensors and a note to a file, whole or not at all; returns the file's SHA-256.

    The file is flushed to the disk; its name is once its folder is, which is left to the caller.
    """
    part = partial_name(path)
    with renamed_at_the_end(part, path):
        save_file(tensors, part, metadata=note)
        return sha256_of(part, sync=True)
