"""``fedsmoo run``: one method, one folder."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Annotated, Any

import typer

from fedsmoo.commands.console import console, progress
from fedsmoo.commands.options import ConfigFile, Sets, gather, with_settings
from fedsmoo.experiment.compare import human_bytes
from fedsmoo.experiment.config import Config
from fedsmoo.experiment.loop import Result
from fedsmoo.experiment.resolve import assemble
from fedsmoo.experiment.runfolder import RunFolder

Out = Annotated[Path | None, typer.Option(help="Run folder (default: a new one under runs/).", show_default=False)]


def new_folder(config: Config) -> Path:
    """``runs/fedsmoo-digits-seed0``, numbered if that exists."""
    name = Path(config.algorithm.rpartition(":")[2] or config.algorithm).name
    stem = f"{name}-{config.dataset.partition(':')[0]}-seed{config.seed}".lower()
    stem = "".join(ch if ch.isalnum() or ch in "-_." else "-" for ch in stem)
    candidates = (Path("runs") / (stem if i == 1 else f"{stem}-{i}") for i in itertools.count(1))
    return next(p for p in candidates if not p.exists())


def train(config: Config, folder: Path) -> tuple[Result, dict[str, Any]]:
    """Run a config into a folder, with a progress bar."""
    simulation = assemble(config)
    keeper = RunFolder(folder, config)
    with progress(simulation.setup.algorithm.label, config.rounds) as show:

        def callback(record: Any) -> None:
            keeper.record(record)
            show(record)

        result = simulation.run(callback)
    return result, keeper.finish(result, config)


def _run(config: ConfigFile = None, sets: Sets = None, out: Out = None, *, flags: dict[str, Any]) -> None:
    settings = gather(config, sets, flags)
    folder = out or new_folder(settings)
    result, summary = train(settings, folder)
    print_summary(settings, result, summary, folder)


def print_summary(config: Config, result: Result, summary: dict[str, Any], folder: Path) -> None:
    """One screen: what ran, how well, what it cost, and where it lies."""
    out, label = console(), result.simulation.setup.algorithm.label
    out.print(f"[bold]{label}[/bold] on {config.dataset}, {len(result.simulation.indices)} clients, "
              f"{config.cohort} per round, {summary['rounds']} rounds ({summary['engine']} engine)")  # fmt: skip
    out.print(f"  test accuracy   {100 * summary['test_accuracy']:.2f}%   "
              f"(mean of the last ten {100 * summary['test_accuracy_last10']:.2f}%)")  # fmt: skip
    out.print(f"  test loss       {summary['test_loss']:.4f}")
    out.print(f"  sent            {human_bytes(summary['bytes_up'])} up, {human_bytes(summary['bytes_down'])} down")
    out.print(f"  seconds         {summary['seconds_train']:.1f} training, {summary['seconds_eval']:.1f} evaluation")
    if config.target is not None:
        hit = summary["target_reached"]
        text = "never" if hit is None else f"round {hit['round']}, {human_bytes(hit['bytes'])}, {hit['seconds']:.1f} s"
        out.print(f"  to {100 * config.target:.1f}%        {text}")
    out.print(f"  folder          {folder}", soft_wrap=True)


run = with_settings(_run)
