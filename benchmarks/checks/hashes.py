"""Does a change leave every bit as it was? Some configurations at two commits, on this machine, compared by hashes.

    python -m benchmarks.checks.hashes OLD [NEW]           # NEW: HEAD, if not given; or: make hashes OLD=... NEW=...
    python -m benchmarks.checks.hashes OLD --only ranks    # configurations with that in their name; nothing is kept

Each commit is checked out into a temporary ``git worktree`` and called through what users call, ``python -m fedsmoo``,
``torchrun`` and ``fedsmoo.simulate``, so that it works however the modules inside are moved. Compared are the SHA-256
of the final model's tensors (names, types, shapes and bytes; not the file's header) and of every column of the old
commit's metrics that is no time. A configuration that the old commit refuses (an option that it does not know) cannot
be compared; one that the new commit refuses counts as a difference, as other bits do, and the exit status is 1.

The outcome is added to ``results/hashes.json``. It takes two minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open

from benchmarks.checks.commits import ROOT, add, checkout, circumstances, environment, full_name
from benchmarks.checks.configurations import CONFIGURATIONS, FILES, STOP, Configuration

OUTCOMES = ROOT / "results" / "hashes.json"
TIMES = ("seconds_train", "seconds_eval")
PATIENCE = 300.0  # seconds that one command may take on a busy machine


class Refused(Exception):
    """A command ended with an error, of which this is the last line."""


@dataclass(frozen=True)
class Hashes:
    """What one configuration left at one commit: runs by name, and in each a hash of the model and of every column."""

    models: dict[str, str]
    columns: dict[str, dict[str, str]]

    def short(self, other: Hashes) -> str:
        """Return eight digits for the models and the columns that the other commit has, too."""
        names = [{n for columns in h.columns.values() for n in columns} for h in (self, other)]
        common = {run: {n: h for n, h in c.items() if n in names[0] & names[1]} for run, c in self.columns.items()}
        return digest(json.dumps([self.models, common], sort_keys=True).encode())[:8]


def digest(data: bytes) -> str:
    """Return the SHA-256 of some bytes."""
    return hashlib.sha256(data).hexdigest()


def hash_tensors(path: Path) -> str:
    """Return the SHA-256 of a safetensors file's tensors: names, types, shapes and bytes, in the names' order."""
    found = hashlib.sha256()
    with safe_open(path, framework="numpy") as file:
        for name in sorted(file.keys()):
            array = file.get_tensor(name)
            found.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return found.hexdigest()


def hash_columns(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each column of a metrics file, except the times; rounds without a value count as none."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    names = sorted({name for row in rows for name in row} - set(TIMES))
    return {name: digest(json.dumps([row.get(name) for row in rows]).encode()) for name in names}


def hash_folder(folder: Path) -> Hashes:
    """Return the hashes of every finished run below a folder."""
    found = sorted(
        path.parent for path in folder.rglob("model.safetensors") if (path.parent / "metrics.jsonl").exists()
    )
    names = {path: str(path.relative_to(folder)) for path in found}
    return Hashes(
        {name: hash_tensors(path / "model.safetensors") for path, name in names.items()},
        {name: hash_columns(path / "metrics.jsonl") for path, name in names.items()},
    )


def differences(old: Hashes, new: Hashes) -> list[str]:
    """Say what differs between two commits; nothing where every model and every column of the old one are equal."""
    said = []
    for name in sorted(old.models.keys() ^ new.models.keys()):
        said.append(f"the run {name} is only at the {'old' if name in old.models else 'new'} commit")
    both = sorted(old.models.keys() & new.models.keys())
    if models := [name for name in both if old.models[name] != new.models[name]]:
        said.append(f"{len(models)} of {len(both)} models")
    columns = sorted({c for name in both for c in old.columns[name]})
    return said + [f"column {c}" for c in columns if any(old.columns[n].get(c) != new.columns[n].get(c) for n in both)]


def call(words: Sequence[str], source: Path, folder: Path) -> None:
    """Carry out one command of a configuration in its folder; :class:`Refused` if it fails."""
    stopped = words[0] == STOP
    arguments = [w.format(source=source, python=sys.executable) for w in (words[1:] if stopped else words)]
    with (folder / "said.txt").open("a+") as log:
        process = subprocess.Popen(arguments, cwd=folder, env=environment(source), stdout=log, stderr=log)
        try:
            if stopped:
                stop_after_a_round(process, folder)
            process.wait(PATIENCE)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        log.seek(0)
        lines = log.read().splitlines()
    if process.returncode != (130 if stopped else 0):
        said = [x.strip("│ ") for x in lines if any(c.isalpha() for c in x)]  # framed, where it is about options
        raise Refused(said[-1] if said else f"ended with {process.returncode}")


def stop_after_a_round(process: subprocess.Popen[bytes], folder: Path) -> None:
    """Ask a run to save and end once it has recorded a round, whichever: a run goes on to the same bits from any."""
    end = time.monotonic() + PATIENCE
    while process.poll() is None and time.monotonic() < end:
        if any(path.stat().st_size for path in folder.rglob("metrics.jsonl")):
            process.send_signal(signal.SIGTERM)
            return
        time.sleep(0.005)


def carry_out(configuration: Configuration, source: Path, folder: Path) -> Hashes:
    """Carry out all commands of a configuration with the package of one checkout; return what they left."""
    folder.mkdir(parents=True)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for words in configuration.commands:
        call(words, source, folder)
    found = hash_folder(folder)
    if len(found.models) != configuration.runs:
        raise Refused(f"left {len(found.models)} finished runs instead of {configuration.runs}")
    return found


def attempt(configuration: Configuration, source: Path, folder: Path) -> Hashes | str:
    """Return what a configuration leaves at one commit, or what it was refused with."""
    try:
        return carry_out(configuration, source, folder)
    except Refused as e:
        return str(e)
    finally:
        shutil.rmtree(folder)


def outcome(configuration: Configuration, sources: Sequence[Path], folder: Path) -> dict[str, Any]:
    """Carry out one configuration at both commits, side by side."""
    with ThreadPoolExecutor(2) as pool:
        old, new = pool.map(lambda i: attempt(configuration, sources[i], folder / str(i)), range(2))
    row: dict[str, Any] = {"what": configuration.what, "old": None, "new": None}
    if isinstance(old, str):
        return row | {"equal": None, "why": [old.replace(f"{sources[0]}/", "")]}
    if isinstance(new, str):
        return row | {"old": old.short(old), "equal": False, "why": [f"refused: {new.replace(f'{sources[1]}/', '')}"]}
    why = differences(old, new)
    return row | {"old": old.short(new), "new": new.short(old), "equal": not why, "why": why}


def describe(name: str, row: dict[str, Any]) -> str:
    """Return a line of the table."""
    word = {True: "equal", False: "DIFFERS", None: "not compared"}[row["equal"]]
    why = "; ".join(row["why"])
    return f"{name:<13} {row['old'] or '-':<9} {row['new'] or '-':<9} {word:<13}{why[:160]}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("old", help="the commit of before")
    parser.add_argument("new", nargs="?", default="HEAD", help="the commit of now")
    parser.add_argument("--only", help="configurations with this in their name; nothing is kept then")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that worktrees are removed
    commits = [full_name(c) for c in (given.old, given.new)]
    chosen = {n: c for n, c in CONFIGURATIONS.items() if given.only is None or given.only in n}
    print(f"{'configuration':<13} {commits[0][:8]:<9} {commits[1][:8]:<9}")
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="hashes-") as place:
        folder = Path(place)
        with checkout(commits[0], folder / "old") as old, checkout(commits[1], folder / "new") as new:
            for name, configuration in chosen.items():
                rows[name] = outcome(configuration, (old, new), folder / "runs" / name)
                print(describe(name, rows[name]), flush=True)
    entry = {"old": commits[0], "new": commits[1], **circumstances(), "configurations": rows}
    if given.only is None:
        add(OUTCOMES, entry, ("old", "new", "torch", "cpu"))
    counts = [sum(r["equal"] is word for r in rows.values()) for word in (True, False, None)]
    print(f"{counts[0]} equal, {counts[1]} different, {counts[2]} not compared (torch {entry['torch']})")
    return int(counts[1] > 0)


if __name__ == "__main__":
    sys.exit(main())
