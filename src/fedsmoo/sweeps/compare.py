"""Compare methods on one task: ``fedsmoo.compare``, a sweep with an axis of methods and one of seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import as_path
from fedsmoo.engines.devices import make_device
from fedsmoo.runs.build import algorithm_class, assemble, make_algorithm, make_config, settings_of
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.contents import contents, contents_here, refuse_edited
from fedsmoo.runs.origin.identity import SAME_RUN, differences
from fedsmoo.runs.origin.method import beside, of_own
from fedsmoo.runs.origin.trust import refuse_begun_elsewhere
from fedsmoo.runs.record import Record
from fedsmoo.runs.settings.fields import BROUGHT
from fedsmoo.runs.signals import stopped_by
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_config, read_run
from fedsmoo.sweeps import METHODS
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.grid import Cell, parse_seeds
from fedsmoo.sweeps.methods import Entry, Methods, labels, methods_of, stem
from fedsmoo.sweeps.queue import Worker, nothing
from fedsmoo.sweeps.sweep import carry_through

Seeds = str | int | Sequence[int] | None
Source = Config | Mapping[str, Any] | str | PathLike[str] | None


def compare(
    algorithms: Methods = METHODS,
    seeds: Seeds = None,
    config: Source = None,
    out: str | PathLike[str] = "runs/compare",
    *,
    trust: bool = False,
    watch: Callable[[Config, Record], Any] = nothing,
    begun: Callable[[Config, Path, int], Any] = nothing,
    finished: Callable[[Config, Path, dict[str, Any]], Any] = nothing,
    failed: Callable[[Config, Path, str], Any] = nothing,
    note: Callable[[str], Any] = nothing,
    stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Comparison:
    """Train several methods on the same task, with the same seeds, each run in a folder ``METHOD-seedN``.

    Idempotent: called again with the same arguments it goes on where it was stopped; methods and seeds may be added.

    Args:
        algorithms: methods, separated by commas, each with options after a colon (``"fedavg,fedprox:mu=0.1"``), as a
            sequence of such names or of methods (``[FedAvg(), FedProx(mu=0.1)]``), or as a mapping to settings and
            hyper-parameters of one method each: ``{"fedavg": {}, "fedsmoo": {"r": 0.05}}``.
        seeds: seeds of the runs, as numbers or separated by commas (default: the config's, or 0).
        config: settings of all methods: a ``Config``, a mapping, or the path of a TOML file.
        out: folder of the runs and of the picture ``curves.png``.
        trust: go on with runs that somebody else began, though you have not run their code before; said once.
        watch, begun, finished, failed, note, stop: as in :func:`fedsmoo.sweep`.
        settings: override ``config``, for all methods: any setting, or a hyper-parameter that all of them have.

    Returns:
        The runs by method and seed, the rows of the table, and both as a pandas frame and as text. Runs that failed,
        or are left because ``stop`` said so, are in its ``outcome``.

    Raises:
        FedsmooError: if settings are wrong, or the folder was begun with others; nothing is changed then.
    """
    folder, methods = as_path(out, "out"), methods_of(algorithms)
    refuse_others([entry.name for entry in methods], config, settings, folder, trust)
    cells = open_comparison(methods, seeds, config, folder, settings)
    with stopped_by(stop) as asked:
        worker = Worker(watch=watch, begun=begun, finished=finished, failed=failed, note=note, stop=asked)
        return carry_out(cells, folder, worker)


def carry_out(cells: Mapping[Path, Cell], out: Path, worker: Worker) -> Comparison:
    """Work through the runs of a comparison, the seeds of a method in one batch on a GPU, and draw their curves."""
    first = next(iter(cells.values())).config
    seeds = {cell.config.seed for cell in cells.values()}
    pack = 1 if make_device(first.device).type == "cpu" else len(seeds)
    worker = dataclasses.replace(worker, pack=pack, keep=True, retry=True, work="comparison")
    labels = {folder.name: cell.label for folder, cell in cells.items() if cell.label is not None}
    outcome = carry_through(cells, worker, labels=labels)
    done = [folder for folder in cells if folder in outcome.finished]
    runs: dict[str, dict[int, Any]] = {}
    for folder in done:
        runs.setdefault(cells[folder].method, {})[cells[folder].config.seed] = read_run(folder)
    comparison = Comparison(first, runs, outcome, out)
    if runs and not outcome.left:
        comparison.draw()
    return comparison


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
        each = make_config(config, {**settings, "algorithm": entry.name, **entry.options}, untyped)
        refuse_unsound(make_algorithm(entry.name, each.algorithm_options))  # said now, not when its turn comes
        if same := next((other for other, config in configs.items() if config == each), None):
            raise FedsmooError(f"{same} and {label} are the same method with the same settings: leave one out")
        configs[label] = each
    held = contents_here(list(configs.values()))
    numbers = seeds_of(seeds, next(iter(configs.values())))
    cells = {
        out / f"{stem(label)}-seed{s}": Cell(each.replace(seed=s), label, "", here)
        for (label, each), here in zip(configs.items(), held, strict=True)
        for s in numbers
    }
    refuse_something_else(out, cells)
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
    if seeds is None:
        return [config.seed]
    if not isinstance(seeds, str):
        seeds = ",".join(map(str, [seeds] if isinstance(seeds, int) else seeds))
    return parse_seeds(seeds)


def refuse_not_shared(settings: Mapping[str, Any], own: Sequence[Entry]) -> None:
    """Refuse settings that would make the rows of a table differ in more than the method.

    Those are: what other arguments say, one method's own data, and hyper-parameters for all that only some have.
    """
    words = [("", settings), *((f"{entry.name}.", entry.options) for entry in own)]
    for owner, key, value in ((owner, key, value) for owner, given in words for key, value in given.items()):
        word = f"{owner}{key}={value}"
        if key in ("seed", "algorithm"):
            raise FedsmooError(f"--set {word!r}: a comparison takes its {key}s from --{key}s")
        if owner and key in FIELDS and FIELDS[key].metadata["group"] == "data":
            raise FedsmooError(f"--set {word!r}: methods are compared on the same data; set {key} for all of them")
        if owner or key in FIELDS:
            continue
        has = {e.name: key in {f.name for f in dataclasses.fields(algorithm_class(e.name))} for e in own}
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
        methods = beside(run.config, run.method, cell.config), of_own(cell.config)
        changed = differences(run.config, cell.config, SAME_RUN, contents(cell.config), methods=methods)
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
