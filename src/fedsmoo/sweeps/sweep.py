"""Carry out a grid of runs: ``fedsmoo.sweep``, the function under the command of that name."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import as_path, brief
from fedsmoo.engines.devices import make_device
from fedsmoo.engines.distributed.launcher import require_single_process
from fedsmoo.runs.build import make_algorithm
from fedsmoo.runs.config import Config
from fedsmoo.runs.origin.contents import SAMPLES, edited_files, hash_files_and_data, without_unrecorded
from fedsmoo.runs.origin.samples import recorded_fingerprint
from fedsmoo.runs.origin.trust import refuse_begun_elsewhere
from fedsmoo.runs.record import Record, refuse_wrong_arguments
from fedsmoo.runs.signals import stopped_by
from fedsmoo.runs.storage.fence import fenced_by
from fedsmoo.runs.storage.folder import refuse_run_folder, write_label
from fedsmoo.runs.storage.lease import TakenOver, acquire
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_label, read_run, state
from fedsmoo.sweeps.bases import read_sweep, with_base
from fedsmoo.sweeps.cost import refuse_impossible
from fedsmoo.sweeps.grid import Cell, Sweep, expand, named_by_tables, with_contents
from fedsmoo.sweeps.index import refresh
from fedsmoo.sweeps.queue import Outcome, Worker, ignore, work_at
from fedsmoo.sweeps.results import collect, export

PACK = 4  # runs in one batch on a GPU, unless somebody says otherwise
Source = str | PathLike[str] | Mapping[str, Any] | Sweep


def sweep(
    file_or_table: Source,
    out: str | Path | None = None,
    *,
    minutes: float | None = None,
    pack: int | None = None,
    to: str | Path | None = None,
    supersede: str | None = None,
    measured: str | Path | None = None,
    keep: bool = False,
    retry: bool = False,
    wait: bool = True,
    save_every: int | None = None,
    trust: bool = False,
    watch: Callable[[Config, Record], Any] = ignore,
    begun: Callable[[Config, Path, int], Any] = ignore,
    finished: Callable[[Config, Path, dict[str, Any]], Any] = ignore,
    failed: Callable[[Config, Path, str], Any] = ignore,
    note: Callable[[str], Any] = ignore,
    stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Outcome:
    """Carry out every run of a grid, each in a folder of its own; idempotent, and several processes may share it.

    Args:
        file_or_table: a TOML file whose lists make a grid, or the same as a dictionary (``{"lr": [0.1, 0.3]}``).
        out, minutes: folder of the runs (default: ``runs/`` and the file's name); stop after so long, everything saved.
        pack, measured: runs in one batch (default: 4 on a GPU, 1 on a CPU); folder of results that need no run.
        to, supersede: folder of result files, written as runs finish; a reason to replace those of other numbers.
        keep, save_every: keep the checkpoints of finished runs; rounds between them (default: under 5% of the time).
        trust, retry, wait: run code that others began with; try failed runs again; wait for what others have leased.
        watch, begun, finished, failed, note, stop: what to call when; see :class:`Worker`. Without ``stop``, Ctrl-C
            lets the round end, saves, and then raises ``KeyboardInterrupt``; a second one does so at once.
        settings: settings that win over the file's, by name (``rounds=10, device="cuda"``).

    Returns:
        The folders of finished and left runs, and those of failed ones with the reason of each.

    Raises:
        FedsmooError: if the grid describes no run or an impossible one, or a file was edited meanwhile.
    """
    refuse_wrong_arguments(save_every)
    grid = open_sweep(file_or_table, settings, root := folder_of(file_or_table, out), trust, measured, note)
    unfinished(grid, root)
    with stopped_by(stop) as asked:
        calls = watch, begun, finished, failed, note, asked
        worker = Worker(pack_size(pack, grid), keep, retry, wait, save_every, *calls)
        outcome = work_through(grid.folders(root), worker, minutes, to, supersede, grid.labels)
        renew_index(root, note)
    return outcome


def renew_index(root: Path, note: Callable[[str], Any]) -> None:
    """Bring the index up to date; a note says why it cannot be: the runs are there, and it can be made at any time."""
    try:
        if root.is_dir():  # a sweep that was stopped at once has none
            refresh(root)
    except FedsmooError as e:
        note(str(e))


def open_sweep(
    source: Source,
    settings: Mapping[str, Any] | None = None,
    root: Path | None = None,
    trust: bool = False,
    measured: str | Path | None = None,
    note: Callable[[str], Any] = ignore,
) -> Sweep:
    """Expand a file or a table into its runs, named by what their files and data hold now.

    Where runs that somebody else began lie in ``root``, their code is not run unless the user trusts it. Runs that have
    a result in the folder ``measured``, or below it, are left out.
    """
    grid = expanded(source, settings, root, trust)
    return grid if measured is None else not_measured(grid, measured, note)


def expanded(source: Source, settings: Mapping[str, Any] | None, root: Path | None, trust: bool) -> Sweep:
    """Return all runs of a file, a table or a sweep that is expanded already; see :func:`open_sweep`."""
    own = dict(settings or {})

    def look(table: dict[str, Any]) -> None:
        if root is not None:
            refuse_begun_elsewhere(named_by_tables(table, own), root, trust)

    if isinstance(source, Sweep):
        if settings:
            raise FedsmooError("settings belong to a file or a table: this sweep is expanded already")
        grid = source
    elif isinstance(source, Mapping):
        table = with_base(dict(source))
        look(table)
        grid = expand(table, "the table", own)
    elif isinstance(source, str | PathLike):
        grid = read_sweep(Path(source), own, look)
    else:
        raise FedsmooError(f"a sweep is {brief(source)}, but must be a table of settings, or the path of a TOML file")
    if all(c.held is not None for c in grid.cells):
        return grid
    grid = with_contents(grid, hash_files_and_data([c.config for c in grid.cells]))
    return grid if root is None else dataclasses.replace(grid, cells=[as_in_older_folder(c, root) for c in grid.cells])


def not_measured(grid: Sweep, folder: str | Path, note: Callable[[str], Any]) -> Sweep:
    """Return a grid without the runs that have a result in a folder or below it; a note says how many have.

    Raises:
        FedsmooError: if there is no such folder.
    """
    if not (where := as_path(folder, "measured")).is_dir():
        raise FedsmooError(f"measured: there is no folder {where}")
    found = collect(results=sorted({path.parent for path in where.rglob("*.json")}), note=note)
    cells = [cell for cell in grid.cells if cell.identity not in found]
    note(f"{len(grid.cells) - len(cells)} of {len(grid.cells)} runs are left out: their results lie below {where}")
    return dataclasses.replace(grid, cells=cells)


def as_in_older_folder(cell: Cell, root: Path) -> Cell:
    """Return a run as an older version named its folder: without the hash of the samples of a user's function.

    If there is no such folder, or it holds the run on other samples, the run is returned as it is.
    """
    before = dataclasses.replace(cell, held=without_unrecorded(cell.held or {}, None))
    folder = root / before.name
    if before == cell or not (folder / CONFIG).is_file():
        return cell
    with suppress(FedsmooError):  # which is said when its turn comes
        if recorded_fingerprint(read_run(folder).started) not in (None, (cell.held or {}).get(SAMPLES)):
            return cell
    return before


def folder_of(source: Source, out: str | Path | None) -> Path:
    """Return the folder of a sweep's runs: the one given, or one under ``runs/`` with the name of its file."""
    if out is not None:
        return as_path(out, "out")
    return Path("runs") / (Path(source).stem if isinstance(source, str | PathLike) else "sweep")


def unfinished(grid: Sweep, root: Path) -> list[Config]:
    """Return the runs that have not finished; raises a ``FedsmooError`` if one of them is impossible."""
    cells = [cell for folder, cell in grid.folders(root).items() if state(folder) != "finished"]
    for cell in cells:  # said now, not when its turn comes
        refuse_unsound(make_algorithm(cell.config.algorithm, cell.config.algorithm_options))
    refuse_impossible(cells)
    return [cell.config for cell in cells]


def pack_size(pack: int | None, grid: Sweep) -> int:
    """Return how many runs may share a batch: what was asked for, or the default of the device of the first run."""
    if pack is not None:
        return pack
    return PACK if grid.cells and make_device(grid.cells[0].config.device).type == "cuda" else 1


@dataclass
class ResultFiles:
    """The result files of runs, which are written as these finish; none without a ``folder`` for them."""

    folder: Path | None
    supersede: str | None  # why those of other numbers are replaced
    note: Callable[[str], Any]
    unwritten: list[Path] = field(default_factory=list)

    def write(self, run: Path) -> None:
        """Write a run's result; if that cannot be, a note says why, and the run is kept."""
        if self.folder is None:
            return
        try:
            export([run], self.folder, self.supersede, self.note)
        except FedsmooError as e:
            self.note(f"not exported: {e}")
            self.unwritten.append(run)

    def missing(self, cells: Mapping[Path, Cell]) -> list[Path]:
        """Return the runs that had finished, perhaps in a process that ended before it wrote their result.

        Where another result may be superseded, that a file is there does not say that it is this run's.
        """
        if self.folder is None:
            return []
        done = [run for run in cells if state(run) == "finished"]
        return [r for r in done if self.supersede is not None or not (self.folder / f"{cells[r].name}.json").exists()]


def work_through(
    cells: Mapping[Path, Cell],
    worker: Worker,
    minutes: float | None = None,
    results: Path | str | None = None,
    supersede: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Outcome:
    """Work through runs in their folders, within some minutes if so many are given; label and export them as they go.

    ``labels`` are what the sweep calls its methods, by the run's name; none: runs are left without a label.
    """
    require_single_process(f"a {worker.work}")
    for root in {folder.parent for folder in cells}:
        refuse_run_folder(root)
    end = time.monotonic() + 60 * minutes if minutes is not None else float("inf")
    written = ResultFiles(None if results is None else Path(results), supersede, worker.note)
    for folder in cells:
        if labels is not None and state(folder) != "new":
            relabel(folder, labels.get(folder.name))

    def begun(config: Config, folder: Path, rounds: int) -> None:
        if labels is not None and read_label(folder) != labels.get(folder.name):
            write_label(folder, labels.get(folder.name))
        if other := edited_files(config, read_run(folder).held, cells[folder].held or {}) if rounds == 0 else []:
            worker.note(
                f"{folder.name}: {other[0]} was edited since this {worker.work} began, or it draws without a seed"
            )
        worker.begun(config, folder, rounds)

    def finished(config: Config, folder: Path, summary: dict[str, Any]) -> None:
        worker.finished(config, folder, summary)
        written.write(folder)

    for folder in written.missing(cells):
        written.write(folder)
    timed = dataclasses.replace(
        worker, begun=begun, finished=finished, stop=lambda: worker.stop() or time.monotonic() > end
    )
    configs, held = {p: c.config for p, c in cells.items()}, {p: c.held or {} for p, c in cells.items()}
    outcome = work_at(configs, timed, held)
    outcome.unwritten = written.unwritten
    return outcome


def relabel(folder: Path, label: str | None) -> None:
    """Write what the method of a run is called now, if nobody works on it: who does writes what it calls it itself."""
    if read_label(folder) == label or (lease := acquire(folder)) is None:
        return
    try:
        with suppress(TakenOver), fenced_by(lease):
            write_label(folder, label)
    finally:
        lease.release()
