"""Reproduce a table of the paper: carry out the runs it lacks, and show ours beside the printed numbers."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedsmoo.core.errors import FedsmooError, as_path, unknown
from fedsmoo.paper import tables
from fedsmoo.paper.cells import Found, Grid
from fedsmoo.paper.render import Table, render
from fedsmoo.paper.selection import Selection, on_measured_data, on_other_data, split
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.contents import hash_files_and_data
from fedsmoo.runs.record import Record
from fedsmoo.runs.results.curves import accuracy_curves, hanning
from fedsmoo.runs.signals import stopped_by
from fedsmoo.runs.storage.names import fitting_name
from fedsmoo.sweeps.bases import EXPERIMENTS
from fedsmoo.sweeps.grid import Sweep, listed_seeds, with_contents
from fedsmoo.sweeps.index import refresh
from fedsmoo.sweeps.queue import Outcome, Worker, ignore
from fedsmoo.sweeps.results import collect
from fedsmoo.sweeps.sweep import pack_size, work_through
from fedsmoo.version import __version__

RESULTS = Path("results")  # unless another folder is named; nothing was measured where it is not there
WINDOW = 20  # rounds of the Hanning window
Words = str | Sequence[str]


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper with what was measured for it."""

    sweep: Sweep
    found: Found
    out: Path  # where its runs lie, and go
    results: Path | None = None  # where result files lie; none: in ``results``, if there is one
    compact: bool = False
    outcome: Outcome = dataclasses.field(default_factory=Outcome)  # of the runs that were carried out for it

    @property
    def missing(self) -> Sweep:
        """The runs of it that were not measured."""
        cells = {c.identity: c for c in self.sweep.cells if c.identity not in self.found}
        return dataclasses.replace(self.sweep, cells=list(cells.values()))

    @property
    def tables(self) -> list[Table]:
        """Its header, rows of text and notes; some have a table for each column of the paper's."""
        return build(self.sweep, self.found, self.compact)

    @property
    def on_other_data(self) -> Counter[tuple[str, str]]:
        """How many measured runs are not shown for the content of their data, by data set and content."""
        return on_other_data(self.sweep, self.found)

    def completed(self, worker: Worker, minutes: float | None = None, pack: int | None = None) -> PaperTable:
        """Carry out what is missing; returns the table with it."""
        grid = self.missing
        if not grid.cells:
            return self
        worker = dataclasses.replace(worker, pack=pack_size(pack, grid))
        outcome = work_through(grid.folders(self.out), worker, minutes)
        if self.out.is_dir():
            refresh(self.out)
        return dataclasses.replace(self, found=measured(self.out, self.results, worker.note), outcome=outcome)

    def render(self, form: str = "text") -> str:
        """Return it as ``text``, ``markdown``, ``latex`` or ``csv``."""
        return render(self.tables, form)

    def __str__(self) -> str:
        return self.render()

    __repr__ = __str__  # what a prompt or a notebook shows

    def draw(self, folder: str | Path) -> list[Path]:
        """Draw a picture of smoothed accuracy over rounds for each column; returns the files."""
        grid, out, folder = Grid(self.sweep, self.found), [], Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for column in grid.columns:
            runs = {m: [r.history for r in grid[m, column]] for m in grid.methods if grid[m, column]}
            if runs:
                path = folder / (fitting_name(re.sub(r"[^\w.]+", "-", column)) + ".png")
                accuracy_curves(runs, path, column + departure(self.sweep).replace(", ", "\n", 1), smooth=WINDOW)
                out.append(path)
        return out


def table(
    name: str,
    columns: Words = (),
    methods: Words = (),
    seeds: str | Sequence[int] = (),
    scale: float = 1.0,
    *,
    compact: bool = False,
    out: str | Path = "runs/paper",
    results: str | Path | None = None,
    run: bool = True,
    minutes: float | None = None,
    pack: int | None = None,
    watch: Callable[[Config, Record], Any] = ignore,
    begun: Callable[[Config, Path, int], Any] = ignore,
    finished: Callable[[Config, Path, dict[str, Any]], Any] = ignore,
    failed: Callable[[Config, Path, str], Any] = ignore,
    note: Callable[[str], Any] = ignore,
    stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> PaperTable:
    """Return a table of the paper, ours beside the printed numbers, after carrying out the runs that it lacks.

    Args:
        name: ``accuracy``, ``rounds``, ``communication``, ``wallclock``, ``ablation``, ``sensitivity``, ``curves`` or
            ``flatness``.
        columns: some of its columns, by name or by parts of it such as ``cifar10`` (default: all).
        methods: some of its methods (default: all).
        seeds: seeds of the runs (default: 0, or all that were measured where nothing may run).
        scale: share of the paper's rounds.
        compact: of ``accuracy``, one table with a cell for each column.
        out: folder of the runs.
        results: folder of result files (default: ``results``, if there is one).
        run: carry out what was not measured; otherwise show what there is, or else what came with the package.
        minutes: stop after so long, everything saved.
        pack: runs in one batch (default: 4 on a GPU, 1 on a CPU).
        watch, begun, finished, failed, note, stop: as in :func:`fedsmoo.sweep`.
        settings: settings other than the paper's, which the table then names.

    Raises:
        FedsmooError: if there is no such table, column or method, or a run is impossible.
    """
    refuse_unknown(settings)
    selection = Selection(name, words(columns), words(methods), seed_numbers(seeds), scale, compact)
    made = opened(selection, as_path(out, "out"), results, run, settings, note)
    with stopped_by(stop) as asked:
        worker = Worker(watch=watch, begun=begun, finished=finished, failed=failed, note=note, stop=asked, work="table")
        return made.completed(worker, minutes, pack) if run else made


def refuse_unknown(settings: Mapping[str, Any]) -> None:
    """Refuse what is no setting, with the nearest setting or argument of :func:`table`."""
    known = {*inspect.signature(table).parameters, *FIELDS} - {"settings"}
    for name in settings:
        if name not in FIELDS:
            raise unknown("option of a table", name, known)


def opened(
    selection: Selection,
    out: Path,
    results: str | Path | None,
    run: bool,
    settings: Mapping[str, Any],
    note: Callable[[str], Any] = ignore,
) -> PaperTable:
    """Find what was measured for a table.

    What may ``run`` is on the data that lies here, as is what names it; else a table is on the data that its runs were
    made with. Where nothing was measured, and nothing may run, these are those that came with the package. What may not
    run has all seeds that were measured, unless some are chosen.
    """
    ordered = {n: settings[n] for n in sorted(settings, key=lambda n: [*FIELDS, n].index(n))}  # as titles name them
    sweep = selection.sweep(ordered)
    folder = None if results is None else existing(Path(results))
    found = measured(out, folder, note)
    if not found and not run and folder is None and not RESULTS.is_dir():
        folder = packaged(note)
        found = measured(out, folder, note)
    if not run:
        sweep = selection.over_measured_seeds(found, ordered)
    if run or "data" in settings:
        sweep = with_contents(sweep, hash_files_and_data([c.config for c in sweep.cells]))
    else:
        sweep = on_measured_data(sweep, found)
    return PaperTable(sweep, found, out, folder, selection.compact)


def measured(out: Path, results: Path | None, note: Callable[[str], Any]) -> Found:
    """Collect the finished runs of a folder and the results of another."""
    return collect([out], homes(RESULTS if results is None else results), note)


def homes(results: Path) -> list[Path]:
    """Return where a folder of results keeps those of the paper's tables.

    In itself lie the runs of table 1, and in folders that are called like the other tables those that they alone have,
    so that who takes ``results/*.json`` has the methods as they are, and nothing that was tried with them.
    """
    return [results, *(results / name for name in EXPERIMENTS)]


def packaged(note: Callable[[str], Any]) -> Path | None:
    """Return the folder of results that came with the package, and say so; ``None`` if it came without.

    A wheel has them beside this module, a checkout in its own folder.
    """
    here = Path(__file__).resolve()
    checkout = here.parents[3] / RESULTS if (here.parents[3] / "pyproject.toml").is_file() else here
    found = next((folder for folder in (here.parent / "results", checkout) if folder.is_dir()), None)
    if found is not None:
        note(f"nothing was measured here: the results shown came with fedsmoo {__version__}")
    return found


def existing(folder: Path) -> Path:
    """Return a folder of results that somebody named or needs; raises a ``FedsmooError`` if there is none."""
    if not folder.is_dir():
        raise FedsmooError(f"results: there is no folder {folder}")
    return folder


def words(given: Words) -> tuple[str, ...]:
    """Return words that are given as a sequence or separated by commas."""
    return tuple(split(given) if isinstance(given, str) else given)


def seed_numbers(given: str | Sequence[int]) -> tuple[int, ...]:
    """Return seeds that are given as a sequence or separated by commas."""
    return () if isinstance(given, Sequence) and not given else tuple(listed_seeds(given))


def build(sweep: Sweep, found: Found, compact: bool = False) -> list[Table]:
    """Make the tables of an experiment from what was measured."""
    kind, grid, title = sweep.about["kind"], Grid(sweep, found), sweep.title + departure(sweep)
    refuse_other_metrics(grid)
    if kind == "accuracy":
        return tables.accuracy(grid, title, compact)
    if kind == "curves":
        return tables.curves(grid, title, hanning, WINDOW)
    return getattr(tables, kind)(grid, title)


def refuse_other_metrics(grid: Grid) -> None:
    """Refuse runs that another metric leads: the paper's numbers, and its targets, are test accuracies."""
    other = next((r.lead for runs in grid.runs.values() for r in runs if r.lead.name != "accuracy"), None)
    if other is not None:
        raise FedsmooError(
            f"the paper's tables are of test accuracy, but these runs are compared by the {other.title}: name accuracy "
            "first in metrics, or compare them with 'fedsmoo compare' or 'fedsmoo runs'"
        )


def departure(sweep: Sweep) -> str:
    """Say what is not as in the paper, if anything: for every title, which is all that some formats keep."""
    notes = [note.partition(": ")[2].rstrip(".") for note in sweep.about.get("notes", [])]
    return f", not the paper's setting ({'; '.join(notes)})" if notes else ""
