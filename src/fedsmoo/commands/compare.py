"""``fedsmoo compare``: several methods on the same task, a table and a picture."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.console import console, counted, progress, table
from fedsmoo.commands.options import ConfigFile, Sets, assign, gather, with_settings
from fedsmoo.commands.run import train
from fedsmoo.core.errors import FedsmooError
from fedsmoo.engines.ranks import alone
from fedsmoo.experiment.compare import cells, common_target, row
from fedsmoo.experiment.config import Config
from fedsmoo.experiment.loop import Record
from fedsmoo.experiment.pack import packable
from fedsmoo.experiment.resolve import algorithm_class, assemble, make_algorithm, make_device
from fedsmoo.experiment.runfolder import read_run
from fedsmoo.experiment.work import Orders, carry_out
from fedsmoo.report.curves import accuracy_curves

Algorithms = Annotated[str, typer.Option(help="Methods, separated by commas.")]
Seeds = Annotated[str, typer.Option(help="Seeds, separated by commas: 0,1,2.")]
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
    for name in listed:
        own = [w.partition(".")[2] for w in sets or [] if w.partition("=")[0].startswith(f"{name}.")]
        common = [w for w in sets or [] if "." not in w.partition("=")[0]]
        config = assign(gather(file, common, {**flags, "algorithm": name}), own)
        make_algorithm(name, config.algorithm_options)  # a wrong option is said now, not when its turn comes
        label = algorithm_class(name).__name__
        if label in out:
            raise FedsmooError(f"--algorithms names {name!r} twice")
        out[label] = config
    for word in sets or []:
        owner = word.partition("=")[0].partition(".")
        if owner[1] and owner[0] not in listed:
            raise FedsmooError(f"--set {word!r}: {owner[0]!r} is not among --algorithms {names}")
    return out


def _compare(
    config: ConfigFile = None,
    algorithms: Algorithms = "fedavg,scaffold,feddyn,fedsam,fedsmoo",
    seeds: Seeds = "0",
    sets: Sets = None,
    out: Folder = Path("runs/compare"),
    *,
    flags: dict[str, Any],
) -> None:
    alone("fedsmoo compare")
    configs = methods(algorithms, config, sets, flags)
    numbers = parse_seeds(seeds)
    if out.is_file() or (out.exists() and any(out.iterdir())):
        raise FedsmooError(f"{out} is not an empty folder: choose another --out, nothing was overwritten")
    engine = one_engine(next(iter(configs.values())))
    runs: dict[str, list[list[Record]]] = {}
    for label, each in configs.items():
        seeded = {out / f"{label.lower()}-seed{s}": each.replace(seed=s, engine=engine) for s in numbers}
        began = time.monotonic()
        runs[label] = train_seeds(label, seeded)
        if not sys.stderr.isatty():  # no progress bar there
            sys.stderr.write(f"{label}: {counted(len(numbers), 'run')} in {time.monotonic() - began:.0f} s\n")
    report(next(iter(configs.values())), runs, out)


def one_engine(config: Config) -> str:
    """The engine of all runs: chosen once, so that seconds compare methods and not engines."""
    if config.engine != "auto" or make_device(config.device).type != "cpu":
        return config.engine
    return assemble(config).engine.name


def train_seeds(label: str, seeded: dict[Path, Config]) -> list[list[Record]]:
    """One method's runs, each in its folder: on a GPU as one batch of clients, else one after the other."""
    configs = list(seeded.values())
    if len(configs) == 1 or make_device(configs[0].device).type == "cpu" or not packable(configs):
        return [train(config, folder)[0].history for folder, config in seeded.items()]

    def failed(config: Config, folder: Path, reason: str) -> None:
        raise FedsmooError(f"seed {config.seed}: {reason}")

    with progress(f"{label} x {len(configs)}", configs[0].rounds) as show:
        carry_out(seeded, Orders(pack=len(configs), watch=lambda config, record: show(record), failed=failed))
    return [read_run(folder)[1] for folder in seeded]


def report(config: Config, runs: dict[str, list[list[Record]]], out: Path) -> None:
    """The table on the screen and as text, the curves as PNG."""
    target = config.target or common_target(runs)
    rows = [row(label, histories, target) for label, histories in runs.items()]
    best = max(range(len(rows)), key=lambda k: rows[k].accuracy)
    goal = f"{100 * target:.0f}%"
    columns = ["method", "accuracy (%)", f"rounds to {goal}", f"sent to {goal}", "seconds"]
    division = config.partition if config.split is None else f"split {Path(config.split).name}"
    accuracy_curves(runs, out / "curves.png", f"{config.dataset}, {division}")
    screen = console()
    screen.print(table("", columns, [cells(r) for r in rows], best))
    screen.print(f"curves: {out / 'curves.png'}", soft_wrap=True)


compare = with_settings(_compare, leave_out=("algorithm", "seed"))
