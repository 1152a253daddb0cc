"""``fedsmoo.compare``: several methods on one task; by names in folders, or with objects of a program in memory."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from fedsmoo.api import OBJECTS, assemble_objects, simulate
from fedsmoo.core import FedsmooError
from fedsmoo.core.errors import FedsmooWarning, as_path
from fedsmoo.runs.config import Config
from fedsmoo.runs.record import Record
from fedsmoo.runs.results.result import Result
from fedsmoo.runs.settings.merge import settings_of
from fedsmoo.runs.watch.display import Moving, display
from fedsmoo.sweeps import METHODS
from fedsmoo.sweeps.compare import MEASURES, compare_named, refuse_not_shared, seeds_of
from fedsmoo.sweeps.comparison import Comparison
from fedsmoo.sweeps.methods import Entry, Methods, folder_name, labels, methods_of, with_method_of
from fedsmoo.sweeps.queue import Outcome, ignore

OUT = Path("runs/compare")
ONE_CALL = ("client_indices", "callback", "out", "progress")  # what simulate takes, and no method has for itself
# What simulate takes by itself, and not as a setting.
DEFAULTS = {
    n: p.default
    for n, p in inspect.signature(simulate).parameters.items()
    if n in inspect.signature(assemble_objects).parameters and n != "settings"
}


def compare(
    algorithms: Methods = METHODS,
    seeds: str | Sequence[int] | None = None,
    config: Config | Mapping[str, Any] | str | PathLike[str] | None = None,
    out: str | PathLike[str] | None = OUT,
    *,
    progress: bool | str | None = "auto",
    trust: bool = False,
    watch: Callable[[Config, Record], Any] = ignore,
    begun: Callable[[Config, Path, int], Any] = ignore,
    finished: Callable[[Config, Path, dict[str, Any]], Any] = ignore,
    failed: Callable[[Config, Path, str], Any] = ignore,
    note: Callable[[str], Any] = ignore,
    stop: Callable[[], bool] | None = None,
    **settings: Any,
) -> Comparison:
    """Train several methods on the same task, with the same seeds, each run in a folder ``METHOD-seedN``.

    Idempotent: called again with the same arguments it goes on where it was stopped; methods and seeds may be added.

    Args:
        algorithms: methods, separated by commas, each with options after a colon (``"fedavg,fedprox:mu=0.1"``), as a
            sequence of such names or of methods (``[FedAvg(), FedProx(mu=0.1)]``), or as a mapping to settings and
            hyper-parameters of one method each: ``{"fedavg": {}, "fedsmoo": {"r": 0.05}}``.
        seeds: seeds of the runs, as numbers or separated by commas, such as ``range(3)`` or ``"0,1,2"`` (default: the
            config's, or 0).
        config: settings of all methods: a ``Config``, a mapping, or the path of a TOML file.
        out: folder of the runs and of the picture ``curves.png``. ``None``: keep them in memory, which is the default
            where something has no name: a method of this program, ``model=net``, ``data=(x, y, x_test, y_test)``, ...
        progress: as of :func:`simulate`.
        trust: go on with runs that somebody else began, though you have not run their code before; said once.
        watch, begun, finished, failed, note, stop: of runs in folders, as in :func:`fedsmoo.sweep`.
        settings: override ``config``, for all methods: any setting, a hyper-parameter that all of them have, or an
            argument of :func:`simulate`.

    Returns:
        The runs by method and seed, their table, frame and curves. Ctrl-C lets the round end and returns what there is;
        runs that failed or are left are in its ``outcome``.
    """
    entries = methods_of(algorithms)
    own = any(is_object(n, v) for n, v in settings.items()) or any(entry.method is not None for entry in entries)
    if out is None or own:
        folder = None if out is None or out is OUT else as_path(out, "out")
        given = settings_of(config)
        own_seed = given.pop("seed", None)
        seeds = [own_seed] if seeds is None and own_seed is not None else seeds
        return compare_objects(entries, seeds, {**given, **settings}, folder, progress)
    calls = {"watch": watch, "begun": begun, "finished": finished, "failed": failed, "note": note, "stop": stop}
    entries = methods_of(with_method_of(config, algorithms))
    return compare_named(entries, seeds, config, as_path(out, "out"), trust, progress, calls, settings)


def is_object(name: str, value: Any) -> bool:
    """Return whether an argument of :func:`simulate` is an object of the program, which no setting names."""
    if name == "metrics" and isinstance(value, list | tuple):
        return any(callable(each) for each in value)
    places = (*OBJECTS, "partition", "client_indices", "metrics")
    return name in places and value is not None and not isinstance(value, str | PathLike)


def compare_objects(
    entries: Sequence[Entry], seeds: Any, settings: Mapping[str, Any], out: Path | None, progress: bool | str | None
) -> Comparison:
    """Carry out one run after the other with :func:`simulate`, in memory or in new folders."""
    refuse_misplaced(entries, settings)
    common = as_arguments(settings)
    numbers = seeds_of(seeds, Config())
    rounds = int(common.get("rounds", Config.rounds))
    runs: dict[str, dict[int, Result]] = {}
    outcome = Outcome()
    tasks = [(e, label, s) for e, label in zip(entries, labels(entries), strict=True) for s in numbers]
    refuse_impossible(tasks, common)
    with display("rounds", rounds * len(tasks), progress=progress) as bar:
        for k, (entry, label, seed) in enumerate(tasks):
            folder = (out or Path()) / folder_name(label, seed)
            try:
                result = one_run(entry, seed, common, None if out is None else folder, bar, label)
                common.setdefault("engine", result.simulation.engine.name)  # of all, so that seconds compare methods
                interrupted = result.interrupted
            except FedsmooError as e:
                outcome.failed[folder] = str(e)
                continue
            except KeyboardInterrupt:
                interrupted = True
            if interrupted:
                outcome.left = [Path(folder_name(name, s)) for _, name, s in tasks[k:]]
                break
            outcome.finished.append(folder)
            runs.setdefault(label, {})[seed] = result
    if outcome.failed and not runs:
        raise FedsmooError(next(iter(outcome.failed.values())))
    first = next((run.config for mine in runs.values() for run in mine.values()), None) or Config()
    return Comparison(first, runs, outcome, out)


def refuse_misplaced(entries: Sequence[Entry], settings: Mapping[str, Any]) -> None:
    """Refuse settings of all that other arguments say, and settings of one method that are of the whole comparison."""
    for name in ("seed", "algorithm"):
        if name in settings:
            raise FedsmooError(f"{name} is given, but a comparison takes its {name}s from {name}s")
    if own := next((n for entry in entries for n in MEASURES if n in entry.options), None):
        raise FedsmooError(f"{own} is given for one method, but they are compared by the same numbers: set it for all")
    refuse_not_shared(settings, entries)
    for entry in entries:
        if whole := [n for n in ONE_CALL if n in entry.options]:
            say = "is of the whole comparison: give it beside the methods"
            raise FedsmooError(f"{whole[0]} is given for {entry.name}, but {say}")


def refuse_impossible(tasks: Sequence[tuple[Entry, str, int]], common: Mapping[str, Any]) -> None:
    """Refuse methods that cannot be carried out, before any trains; what the first cannot do either is no one's own."""
    firsts = {label: (entry, seed) for entry, label, seed in reversed(tasks)}  # one run of each
    if len(firsts) == 1:  # which says so at once
        return
    for label, (entry, seed) in reversed(firsts.items()):
        given = {
            **common,
            **entry.options,
            "seed": seed,
            "algorithm": entry.name if entry.method is None else entry.method,
        }
        named = {n: given.pop(n, default) for n, default in DEFAULTS.items()}
        try:
            with warnings.catch_warnings(action="ignore"):  # its run will give them
                assemble_objects(**named, settings=given)
        except FedsmooError as e:
            if label == tasks[0][1]:
                raise
            raise FedsmooError(f"{label}: {e}") from e


def as_arguments(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as :func:`simulate` takes them: its data is named by the setting ``dataset``."""
    given = dict(settings)
    if "dataset" in given:
        given.setdefault("data", given.pop("dataset"))
    return given


def one_run(entry: Entry, seed: int, common: Mapping[str, Any], out: Path | None, bar: Moving, label: str) -> Result:
    """Carry out one run of a comparison."""
    method: Any = entry.name if entry.method is None else entry.method
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "interrupted after round", FedsmooWarning)
        return simulate(
            **{**common, **entry.options},
            algorithm=method,
            seed=seed,
            out=out,
            progress=False,
            callback=lambda record: bar.move(record, label),
        )
