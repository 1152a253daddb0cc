"""``fedsmoo compare``: several methods on the same task, a table and a picture."""

from __future__ import annotations

import dataclasses
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.console import console, counted, progress, table
from fedsmoo.commands.interrupt import interruptible
from fedsmoo.commands.options import ConfigFile, Sets, gather, plain, split_word, with_settings
from fedsmoo.commands.run import reopen, train
from fedsmoo.core.contract import refuse_unsound
from fedsmoo.core.errors import FedsmooError
from fedsmoo.core.user_code import file_of
from fedsmoo.engines.distributed.ranks import require_single_process
from fedsmoo.runs.build import algorithm_class, assemble, make_algorithm, make_config, make_device
from fedsmoo.runs.config import FIELDS, Config
from fedsmoo.runs.origin.contents import contents, contents_here, data_label, edited
from fedsmoo.runs.origin.identity import SAME_RUN, differences
from fedsmoo.runs.storage.files import DiskError, reason
from fedsmoo.runs.storage.lease import leased
from fedsmoo.runs.storage.names import CONFIG
from fedsmoo.runs.storage.reader import read_config, read_run, state
from fedsmoo.sweeps.comparison import TEN, Histories, cells, common_target, compared, verdict
from fedsmoo.sweeps.curves import accuracy_curves
from fedsmoo.sweeps.pack import packable
from fedsmoo.sweeps.queue import Worker, execute

AGAIN = "the same command"
Failed = Callable[[Config, Path, str], None]
Algorithms = Annotated[str, typer.Option(help="Methods, separated by commas.")]
Seeds = Annotated[
    str | None,
    typer.Option(help="Seeds, separated by commas: 0,1,2 (default: the config file's, or 0).", show_default=False),
]
Folder = Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")]


def parse_seeds(text: str) -> list[int]:
    try:
        seeds = [int(s) for s in text.split(",")]
    except ValueError as e:
        raise FedsmooError(f"--seeds {text!r} must be whole numbers separated by commas, such as 0,1,2") from e
    if len(set(seeds)) != len(seeds):
        raise FedsmooError(f"--seeds {text!r} names a seed twice")
    return seeds


def methods(names: str, file: Path | None, sets: list[str] | None, flags: dict[str, Any]) -> dict[str, Config]:
    """A config per method; ``--set fedsmoo.r=0.05`` is for one method, ``--set lr=0.05`` for all."""
    out: dict[str, Config] = {}
    listed = [n.strip() for n in names.split(",")]
    refuse_elsewhere(sets or [])
    common = [w for w in sets or [] if "." not in w.partition("=")[0]]
    for word in common:
        refuse_for_some(word, listed)
    for name, label in zip(listed, labels(listed), strict=True):
        own = [w.removeprefix(f"{name}.") for w in sets or [] if w.partition("=")[0].startswith(f"{name}.")]
        config = make_config(gather(file, common, {**flags, "algorithm": name}), dict(map(split_word, own)), plain)
        refuse_unsound(make_algorithm(name, config.algorithm_options))  # said now, not when its turn comes
        out[label] = config
    for word in sets or []:
        owner, dot, _ = word.partition("=")[0].rpartition(".")
        if dot and owner not in listed:
            raise FedsmooError(f"--set {word!r}: {owner!r} is not among --algorithms {names}")
    return out


def refuse_elsewhere(sets: Sequence[str]) -> None:
    """Refuse ``--set`` for what other flags say, and for one method's data: its row would be of another task."""
    flags = {"seed": "--seeds", "algorithm": "--algorithms"}
    for word in sets:
        _, dot, key = word.partition("=")[0].rpartition(".")
        if key in flags:
            raise FedsmooError(f"--set {word!r}: a comparison takes its {key}s from {flags[key]}")
        if dot and key in FIELDS and FIELDS[key].metadata["group"] == "data":
            raise FedsmooError(f"--set {word!r}: methods are compared on the same data; set {key} for all of them")


def refuse_for_some(word: str, listed: Sequence[str]) -> None:
    """Refuse a hyper-parameter for all methods that only some of them have: the others would run without it."""
    key = word.partition("=")[0]
    has = {name: key in {f.name for f in dataclasses.fields(algorithm_class(name))} for name in listed}
    mine, others = ([n for n in listed if has[n] is want] for want in (True, False))
    if key not in FIELDS and mine and others:
        say = " ".join(f"--set {name}.{word}" for name in mine)
        raise FedsmooError(
            f"--set {word}: {key} is a hyper-parameter of {', '.join(mine)}, but not of {', '.join(others)}: say whose "
            f"it is, with {say}"
        )


def labels(listed: Sequence[str]) -> list[str]:
    """A name in tables for each method: its class's, and with its file's where two classes have the same."""
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
    """A label in the name of a folder.

    >>> stem("FedSMOO"), stem("Mine (new/m.py)")
    ('fedsmoo', 'mine-new-m.py')
    """
    return re.sub(r"[^\w.]+", "-", label.lower()).strip("-")


def _compare(
    config: ConfigFile = None,
    algorithms: Algorithms = "fedavg,scaffold,feddyn,fedsam,fedsmoo",
    seeds: Seeds = None,
    sets: Sets = None,
    out: Folder = Path("runs/compare"),
    *,
    flags: dict[str, Any],
) -> None:
    require_single_process("fedsmoo compare")
    configs = methods(algorithms, config, sets, flags)
    held = dict(zip(configs, contents_here(list(configs.values())), strict=True))
    first = next(iter(configs.values()))
    numbers = [first.seed] if seeds is None else parse_seeds(seeds)
    places = {label: {s: out / f"{stem(label)}-seed{s}" for s in numbers} for label in configs}
    begun = begun_in(out, [folder for seeded in places.values() for folder in seeded.values()])
    engine = one_engine(first, begun)
    plan = {
        label: {places[label][s]: each.replace(seed=s, engine=engine) for s in numbers}
        for label, each in configs.items()
    }
    refuse_others(
        out,
        begun,
        {folder: config for seeded in plan.values() for folder, config in seeded.items()},
        {folder: held[label] for label, seeded in plan.items() for folder in seeded},
    )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise DiskError(f"cannot write the run folder {out}: {reason(e)}") from e
    failed: dict[Path, str] = {}
    try:
        for label, seeded in plan.items():
            began, left = time.monotonic(), [p for p in seeded if state(p) != "finished"]
            failed |= train_seeds(label, seeded, held[label])
            if not sys.stderr.isatty():  # no progress bar there
                before = f", {len(seeded) - len(left)} done before" if len(left) < len(seeded) else ""
                seconds = time.monotonic() - began
                sys.stderr.write(f"{label}: {counted(len(left), 'run')} in {seconds:.0f} s{before}\n")
    except KeyboardInterrupt:
        sys.stderr.write(f"stopped at once; go on from the last checkpoints with: {AGAIN}\n")
        raise typer.Exit(130) from None
    worked = {label: [p for p in seeded if p not in failed] for label, seeded in plan.items()}
    runs = {
        label: {plan[label][p].seed: read_run(p).history for p in folders}
        for label, folders in worked.items()
        if folders
    }
    if runs:
        one = next(p for folders in worked.values() for p in folders)
        report(first, runs, out, data_label(first.dataset, read_run(one).started))
    if failed:
        console().print(f"failed: {', '.join(p.name for p in failed)}", soft_wrap=True)
        raise typer.Exit(1)


def begun_in(out: Path, places: Sequence[Path]) -> list[Path]:
    """Runs of this comparison that were begun; a folder that holds something else is refused."""
    begun = [p for p in places if (p / CONFIG).is_file()]
    if out.is_file() or (out.is_dir() and not begun and any(p not in places for p in out.iterdir())):
        raise FedsmooError(f"{out} is not an empty folder: choose another --out, nothing was overwritten")
    return begun


def refuse_others(
    out: Path, begun: Sequence[Path], plan: dict[Path, Config], now: Mapping[Path, Mapping[str, str]]
) -> None:
    """Refuse to go on in a folder that was begun with other settings, or with methods or seeds not named now."""
    for folder in begun:
        config = plan[folder]
        run = read_run(folder)
        changed = differences(run.config, config, SAME_RUN, held=contents(config))
        if changed:
            raise FedsmooError(
                f"{folder} was begun with other settings ({'; '.join(changed)}): choose another --out, or give the "
                "same settings to go on; nothing was changed"
            )
        refuse_edited(config, run.held, f"{folder} was begun", now[folder])
    others = [p.name for p in sorted(out.iterdir()) if (p / CONFIG).is_file() and p not in plan] if begun else []
    if others:
        raise FedsmooError(
            f"{out} also holds {', '.join(others)}: choose another --out, or name these methods and seeds too; "
            "nothing was changed"
        )


def refuse_edited(
    config: Config, held: Mapping[str, str] | None, since: str, now: Mapping[str, str] | None = None
) -> None:
    """Refuse files that no longer hold what they held, if somebody wrote down what that was; ``now``: what they do."""
    files = edited(config, held, now)
    if files:
        raise FedsmooError(
            f"{', '.join(files)} was edited since {since}: choose another --out, or put back what it held to go on"
        )


def one_engine(config: Config, begun: Sequence[Path] = ()) -> str:
    """The engine of all runs: chosen once, so that seconds compare methods and not engines."""
    if config.engine != "auto" or make_device(config.device).type != "cpu":
        return config.engine
    return read_config(begun[0]).engine if begun else assemble(config).engine.name


def train_seeds(label: str, seeded: dict[Path, Config], held: Mapping[str, str]) -> dict[Path, str]:
    """One method's runs, each in its folder: on a GPU as one batch of clients, else one after the other.

    What is done is skipped, and what was begun goes on; a run that fails is said at once and does not stop the others.
    Returns why, by folder. ``held`` is what the user's files held when the comparison began: all runs have to be of it.
    """
    left = {folder: config for folder, config in seeded.items() if state(folder) != "finished"}
    configs, reasons = list(left.values()), dict[Path, str]()

    def failed(config: Config, folder: Path, why: str) -> None:
        reasons[folder] = why
        sys.stderr.write(f"failed: {label}, seed {config.seed}: {why}\n")

    if len(left) > 1 and make_device(configs[0].device).type != "cpu" and packable(configs):
        refuse_edited(configs[0], held, "this comparison began")
        train_together(label, left, failed, reasons)
        return reasons
    for folder, config in left.items():
        refuse_edited(config, held, "this comparison began")
        try:
            if state(folder) == "new":
                train(config, folder, again=AGAIN)
            else:
                reopen(folder, again=AGAIN)
        except DiskError:
            raise  # the others would have no room either
        except FedsmooError as e:
            failed(config, folder, str(e))
    return reasons


def train_together(label: str, seeded: dict[Path, Config], failed: Failed, reasons: Mapping[Path, str]) -> None:
    """Runs in one batch; Ctrl-C saves them all and ends the program with a word on how to go on."""
    rounds = next(iter(seeded.values())).rounds
    with ExitStack() as held, interruptible() as asked, progress(f"{label} x {len(seeded)}", rounds) as show:
        leases = {folder: held.enter_context(leased(folder)) for folder in seeded}
        worker = Worker(pack=len(seeded), watch=lambda config, record: show(record), failed=failed, stop=asked)
        execute(seeded, worker, leases)
    if any(state(folder) != "finished" and folder not in reasons for folder in seeded):
        sys.stderr.write(f"everything is saved; go on with: {AGAIN}\n")
        raise typer.Exit(130)


def report(config: Config, runs: dict[str, Histories], out: Path, data: str) -> None:
    """The table on the screen and as text, the curves as PNG; some runs may have failed, which the count of seeds says.

    The best row is bold where its lead over all others is more than chance.
    """
    target = config.target or common_target(runs)
    rows = compared(runs, target)
    others = [r.behind for r in rows if r.behind is not None]
    best = next((k for k, r in enumerate(rows) if r.behind is None), None) if all(b.clear for b in others) else None
    goal = f"{round(100 * target, 6):g}%"
    counts = {min(TEN, sum(r.test_accuracy is not None for r in h)) for mine in runs.values() for h in mine.values()}
    ends = "last ten" if counts == {TEN} else f"last {counts.pop()}" if len(counts) == 1 else "last ten or all"
    columns = ["method", "n", f"{ends} (%)", "− best", f"rounds to {goal}", f"sent to {goal}", "seconds"]
    division = config.partition if config.split is None else f"split {Path(config.split).name}"
    curves = {label: list(mine.values()) for label, mine in runs.items()}
    accuracy_curves(curves, out / "curves.png", f"{data}, {division}")
    screen = console()
    screen.print(table("", columns, [cells(r) for r in rows], best))
    words = f"{ends} (%): mean of the {ends} evaluations on the test set, ± its standard deviation over n seeds"
    screen.print(words, soft_wrap=True)
    if said := verdict(rows):
        screen.print(f"− best: {said}", soft_wrap=True)
    if data != config.dataset:
        screen.print(f"data: {data}", soft_wrap=True)
    screen.print(f"curves: {out / 'curves.png'}", soft_wrap=True)


compare = with_settings(_compare, leave_out=("algorithm", "seed"))
