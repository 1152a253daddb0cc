"""Compare methods that settings name, in folders: a sweep with an axis of methods and one of seeds."""

from __future__ import annotations

import dataclasses
import signal
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import FedsmooWarning, UnknownSetting, unknown_setting
from fedsmoo.engines.devices import make_device
from fedsmoo.runs.build import assemble, make_algorithm
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.contents import hash_files_and_data, hash_user_files, refuse_edited
from fedsmoo.runs.origin.identity import SAME_RUN, differences
from fedsmoo.runs.origin.method import own_method_of_config, recorded_or_own_method
from fedsmoo.runs.origin.trust import refuse_begun_elsewhere
from fedsmoo.runs.record import Record
from fedsmoo.runs.settings.fields import BROUGHT
from fedsmoo.runs.settings.merge import Source, make_config, settings_of
from fedsmoo.runs.signals import Interrupt, deferred_interrupt, not_ignored
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_config, read_run, state
from fedsmoo.runs.watch.display import Moving, display
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.cost import refuse_impossible
from fedsmoo.sweeps.grid import Cell, listed_seeds
from fedsmoo.sweeps.methods import Entry, folder_name, labels
from fedsmoo.sweeps.queue import Outcome, Worker
from fedsmoo.sweeps.sweep import work_through

MEASURES = ("metrics", "target", "eval_every")  # what the rows of a table are compared by
Seeds = str | Sequence[int] | None


def compare_named(
    entries: Sequence[Entry],
    seeds: Seeds,
    config: Source,
    out: Path,
    trust: bool,
    progress: bool | str | None,
    calls: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Comparison:
    """Compare methods that settings name, in folders; the arguments are those of :func:`fedsmoo.compare`.

    ``calls`` are what to call when, as in :func:`fedsmoo.sweep`. Without ``stop`` among them Ctrl-C lets the round end,
    saves, and returns what there is; a second one does so at once.
    """
    refuse_others([entry.name for entry in entries], config, settings, out, trust)
    cells = open_comparison(entries, seeds, config, out, settings)
    done = sum(cell.config.rounds for folder, cell in cells.items() if state(folder) == "finished")
    total = sum(cell.config.rounds for cell in cells.values())
    with ExitStack() as held:
        bar = held.enter_context(display("rounds", total, done, progress=progress))
        stop = calls["stop"] or held.enter_context(deferred_interrupt(signals=not_ignored()))
        worker = with_progress(Worker(**{**calls, "stop": stop}), bar)
        try:
            found = carry_out_comparison(cells, out, worker)
        except KeyboardInterrupt:
            found = comparison_of(cells, out, outcome_on_disk(cells))
    if isinstance(stop, Interrupt) and stop.signal == signal.SIGTERM:
        signal.raise_signal(signal.SIGTERM)  # to whoever handles it outside
    if isinstance(stop, Interrupt) and found.outcome.left:
        left = f"{len(found.outcome.left)} of {len(cells)} runs are left"
        warnings.warn(f"interrupted: {left}; the same call goes on with them", FedsmooWarning, stacklevel=3)
    return found


def with_progress(worker: Worker, bar: Moving) -> Worker:
    """Return a worker that also shows how far its rounds are."""
    label = ""

    def begun(config: Config, folder: Path, rounds: int) -> None:
        nonlocal label
        label = folder.name
        bar.skip(rounds)
        worker.begun(config, folder, rounds)

    def watch(config: Config, record: Record) -> None:
        bar.move(record, label)
        worker.watch(config, record)

    return dataclasses.replace(worker, begun=begun, watch=watch)


def outcome_on_disk(cells: Mapping[Path, Cell]) -> Outcome:
    """Return which runs are finished, and which are left, from their folders: they were stopped at once."""
    done = [folder for folder in cells if state(folder) == "finished"]
    return Outcome(finished=done, left=[folder for folder in cells if folder not in done])


def carry_out_comparison(cells: Mapping[Path, Cell], out: Path, worker: Worker, pack: int | None = None) -> Comparison:
    """Work through the runs of a comparison, the seeds of a method in one batch on a GPU, and draw their curves.

    ``pack``: runs in one batch, whatever the device.
    """
    first = next(iter(cells.values())).config
    seeds = {cell.config.seed for cell in cells.values()}
    pack = pack or (1 if make_device(first.device).type == "cpu" else len(seeds))
    worker = dataclasses.replace(worker, pack=pack, keep=True, retry=True, work="comparison")
    labels = {folder.name: cell.label for folder, cell in cells.items() if cell.label is not None}
    comparison = comparison_of(cells, out, work_through(cells, worker, labels=labels))
    if comparison.runs and not comparison.outcome.left:
        comparison.draw()
    return comparison


def comparison_of(cells: Mapping[Path, Cell], out: Path, outcome: Outcome) -> Comparison:
    """Return the comparison of the runs that are finished."""
    runs: dict[str, dict[int, Any]] = {}
    for folder in (folder for folder in cells if folder in outcome.finished):
        runs.setdefault(cells[folder].method, {})[cells[folder].config.seed] = read_run(folder)
    return Comparison(next(iter(cells.values())).config, runs, outcome, out)


def open_comparison(
    own: Sequence[Entry],
    seeds: Seeds,
    config: Source,
    out: Path,
    settings: Mapping[str, Any],
    untyped: Callable[[Any], Any] = lambda value: value,
) -> dict[Path, Cell]:
    """Return the runs of a comparison by their folders; raises a ``FedsmooError`` if they cannot be carried out there.

    ``own`` are the methods, each with settings of its own, and ``settings`` those of all; ``untyped`` is applied to
    options of a user's own model, as in :func:`make_config`.
    """
    refuse_not_shared(settings, own)
    configs: dict[str, Config] = {}
    for entry, label in zip(own, labels(own), strict=True):
        try:
            each = make_config(config, {**settings, "algorithm": entry.name, **entry.options}, untyped)
        except UnknownSetting as e:
            named = [entry] if e.name in entry.options else own
            options = {each.name: [f.name for f in dataclasses.fields(each.cls)] for each in named}
            raise unknown_setting(e.name, {**options, **e.owners}, FIELDS) from e
        refuse_unsound(make_algorithm(entry.name, each.algorithm_options))  # said now, not when its turn comes
        if same := next((other for other, config in configs.items() if config == each), None):
            raise FedsmooError(f"{same} and {label} are the same method with the same settings: leave one out")
        configs[label] = each
    numbers = seeds_of(seeds, next(iter(configs.values())))
    cells = {
        out / folder_name(label, s): Cell(each.replace(seed=s), label, "")
        for label, each in configs.items()
        for s in numbers
    }
    held = hash_files_and_data([cell.config for cell in cells.values()])
    cells = {p: dataclasses.replace(c, held=here) for (p, c), here in zip(cells.items(), held, strict=True)}
    refuse_something_else(out, cells)
    refuse_impossible([cell for folder, cell in cells.items() if state(folder) != "finished"])
    engine = common_engine(cells)
    cells = {p: dataclasses.replace(c, config=c.config.replace(engine=engine)) for p, c in cells.items()}
    refuse_changed(out, cells)
    return cells


def refuse_others(
    algorithms: Sequence[str], config: Source, settings: Mapping[str, Any], out: Path, trust: bool
) -> None:
    """Refuse to go on with runs that somebody else began, with code that the user has not run, before any is."""
    named = {**settings_of(config), **settings}
    methods = [("algorithm", name) for name in algorithms]
    refuse_begun_elsewhere([*methods, *((n, v) for n, v in named.items() if n in BROUGHT)], out, trust)


def seeds_of(seeds: Seeds, config: Config) -> list[int]:
    """Return the seeds of a comparison; without any, its config's."""
    return [config.seed] if seeds is None else listed_seeds(seeds)


def refuse_not_shared(settings: Mapping[str, Any], own: Sequence[Entry]) -> None:
    """Refuse settings that would make the rows of a table differ in more than the method.

    Those are: what other arguments say, one method's own data, and hyper-parameters for all that only some have.
    """
    words = [("", settings), *((f"{entry.name}.", entry.options) for entry in own)]
    for owner, key, value in ((owner, key, value) for owner, given in words for key, value in given.items()):
        word = f"{owner}{key}={value}"
        if (one := key.removesuffix("s")) in ("seed", "algorithm"):
            raise FedsmooError(f"--set {word!r}: a comparison takes its {one}s from --{one}s")
        if owner and key in FIELDS and FIELDS[key].metadata["group"] == "data":
            raise FedsmooError(f"--set {word!r}: methods are compared on the same data; set {key} for all of them")
        if owner and key in MEASURES:
            raise FedsmooError(f"--set {word!r}: methods are compared by the same numbers; set {key} for all of them")
        if owner or key in FIELDS:
            continue
        has = {e.name: key in {f.name for f in dataclasses.fields(e.cls)} for e in own}
        mine, others = ([name for name, it in has.items() if it is want] for want in (True, False))
        if mine and others:
            say = " ".join(f"--set {name}.{word}" for name in mine)
            raise FedsmooError(
                f"--set {word}: {key} is a hyper-parameter of {', '.join(mine)}, but not of {', '.join(others)}: say "
                f"whose it is, with {say}"
            )


def common_engine(cells: Mapping[Path, Cell]) -> str:
    """Return one engine for all runs, so that seconds compare methods: that of runs begun before, or the first's."""
    first = next(iter(cells.values())).config
    if first.engine != "auto" or make_device(first.device).type != "cpu":
        return first.engine
    begun = next((folder for folder in cells if (folder / CONFIG).is_file()), None)
    return assemble(first).engine.name if begun is None else read_config(begun).engine


def refuse_something_else(out: Path, cells: Mapping[Path, Cell]) -> None:
    """Refuse a folder that holds something, but no run of this comparison."""
    begun = any((folder / CONFIG).is_file() for folder in cells)
    if out.is_file() or (out.is_dir() and not begun and any(p not in cells for p in out.iterdir())):
        raise FedsmooError(f"{out} is not an empty folder: choose another folder, nothing was overwritten")


def refuse_changed(out: Path, cells: Mapping[Path, Cell]) -> None:
    """Refuse to go on in a folder that was begun with other settings or files, or holds runs not named now."""
    begun = [folder for folder in cells if (folder / CONFIG).is_file()]
    for folder in begun:
        cell, run = cells[folder], read_run(folder)
        methods = recorded_or_own_method(run.config, run.method, cell.config), own_method_of_config(cell.config)
        changed = differences(run.config, cell.config, SAME_RUN, hash_user_files(cell.config), methods=methods)
        if changed:
            raise FedsmooError(
                f"{folder} was begun with other settings ({'; '.join(changed)}): choose another folder, or give the "
                "same settings to go on; nothing was changed"
            )
        refuse_edited(cell.config, run.held, f"{folder} was begun", cell.held)
    others = [p.name for p in sorted(out.iterdir()) if (p / CONFIG).is_file() and p not in cells] if begun else []
    if others:
        raise FedsmooError(
            f"{out} also holds {', '.join(others)}: choose another folder, or name these methods and seeds too; "
            "nothing was changed"
        )
