"""Compare methods on one task: ``fedsmoo.compare``, a sweep with an axis of methods and one of seeds."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import as_path, brief
from fedsmoo.core.user_code import file_of
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
from fedsmoo.sweeps.queue import Worker, nothing
from fedsmoo.sweeps.sweep import carry_through

Methods = str | Sequence[str] | Mapping[str, Mapping[str, Any]]
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
        algorithms: methods, separated by commas, as a sequence, or as a mapping to settings and hyper-parameters of
            one method each: ``{"fedavg": {}, "fedsmoo": {"r": 0.05}}``.
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
    refuse_others([name for name, _ in methods], config, settings, folder, trust)
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
    outcome = carry_through(cells, worker)
    done = [folder for folder in cells if folder in outcome.finished]
    runs: dict[str, dict[int, Any]] = {}
    for folder in done:
        runs.setdefault(cells[folder].method, {})[cells[folder].config.seed] = read_run(folder)
    comparison = Comparison(first, runs, outcome, out)
    if runs and not outcome.left:
        comparison.draw()
    return comparison


def open_comparison(
    own: Sequence[tuple[str, dict[str, Any]]],
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
    configs = {}
    for (name, mine), label in zip(own, labels([name for name, _ in own]), strict=True):
        each = make_config(config, {**settings, "algorithm": name, **mine}, untyped)
        refuse_unsound(make_algorithm(name, each.algorithm_options))  # said now, not when its turn comes
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


def methods_of(algorithms: Methods) -> list[tuple[str, dict[str, Any]]]:
    """Return the methods to compare, each with settings of its own."""
    if not isinstance(algorithms, Iterable):
        raise FedsmooError(f"algorithms is {brief(algorithms)}, but must name methods, such as 'fedavg,fedsmoo'")
    names = algorithms.split(",") if isinstance(algorithms, str) else list(algorithms)
    if not names:
        raise FedsmooError("there is no method to compare: name some, such as 'fedavg,fedsmoo'")
    for name in names:
        if not isinstance(name, str):
            raise FedsmooError(
                f"algorithms holds {brief(name)}, but methods are compared by name, with hyper-parameters beside it: "
                "{'fedavg': {}, 'fedsmoo': {'r': 0.05}}"
            )
        if isinstance(algorithms, Mapping) and not isinstance(algorithms[name], Mapping):
            raise FedsmooError(f"the settings of {name} are {brief(algorithms[name])}, but must be a mapping, or {{}}")
    return [(name.strip(), dict(algorithms[name]) if isinstance(algorithms, Mapping) else {}) for name in names]


def seeds_of(seeds: Seeds, config: Config) -> list[int]:
    """Return the seeds of a comparison; without any, its config's."""
    if seeds is None:
        return [config.seed]
    if not isinstance(seeds, str):
        seeds = ",".join(map(str, [seeds] if isinstance(seeds, int) else seeds))
    return parse_seeds(seeds)


def refuse_not_shared(settings: Mapping[str, Any], own: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse settings that would make the rows of a table differ in more than the method.

    Those are: what other arguments say, one method's own data, and hyper-parameters for all that only some have.
    """
    words = [("", settings), *((f"{name}.", mine) for name, mine in own)]
    for owner, key, value in ((owner, key, value) for owner, given in words for key, value in given.items()):
        word = f"{owner}{key}={value}"
        if key in ("seed", "algorithm"):
            raise FedsmooError(f"--set {word!r}: a comparison takes its {key}s from --{key}s")
        if owner and key in FIELDS and FIELDS[key].metadata["group"] == "data":
            raise FedsmooError(f"--set {word!r}: methods are compared on the same data; set {key} for all of them")
        if owner or key in FIELDS:
            continue
        has = {name: key in {f.name for f in dataclasses.fields(algorithm_class(name))} for name, _ in own}
        mine, others = ([name for name, it in has.items() if it is want] for want in (True, False))
        if mine and others:
            say = " ".join(f"--set {name}.{word}" for name in mine)
            raise FedsmooError(
                f"--set {word}: {key} is a hyper-parameter of {', '.join(mine)}, but not of {', '.join(others)}: say "
                f"whose it is, with {say}"
            )


def labels(listed: Sequence[str]) -> list[str]:
    """Return each method's name in tables: its class's, and with its file's where two classes have the same."""
    classes = [algorithm_class(name) for name in listed]
    for k, name in enumerate(listed):
        if classes[k] in classes[:k]:
            raise FedsmooError(f"--algorithms names {name!r} twice")
    plain = [cls.__name__ for cls in classes]
    shared = [sum(stem(label) == stem(other) for other in plain) > 1 for label in plain]
    files = [file_of(name) for name in listed]
    out = [f"{a} ({b})" if c and b else a for a, b, c in zip(plain, files, shared, strict=True)]
    for k, label in enumerate(out):
        if stem(label) in map(stem, out[:k]):
            raise FedsmooError(f"--algorithms: {listed[k]} and another would share a folder: give its class a new name")
    return out


def stem(label: str) -> str:
    """Return a label as the name of a folder begins with it.

    >>> stem("FedSMOO"), stem("Mine (new/m.py)")
    ('fedsmoo', 'mine-new-m.py')
    """
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-")


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
