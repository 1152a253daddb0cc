"""``fedsmoo compare``: several methods on the same task, a table and a picture."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click
import typer
from click.core import ParameterSource

from fedsmoo.commands.console import console, counted, print_paragraph, progress
from fedsmoo.commands.interrupt import interruptible
from fedsmoo.commands.options import Sets, parse_word, refuse_two_words, split_word, with_settings
from fedsmoo.commands.run import Trust
from fedsmoo.commands.screen import next_step
from fedsmoo.core.errors import FedsmooError, unknown
from fedsmoo.engines.distributed.launcher import require_single_process
from fedsmoo.runs.settings.fields import BROUGHT
from fedsmoo.sweeps import METHODS

if TYPE_CHECKING:
    from fedsmoo.sweeps.comparison import Comparison
    from fedsmoo.sweeps.grid import Cell
    from fedsmoo.sweeps.methods import Entry
    from fedsmoo.sweeps.queue import Outcome, Worker

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[METHOD]... [CONFIG]",
        help="Methods, each with options of its own, such as fedavg fedprox:mu=0.1 fedsmoo:r=0.03,beta=10 (blanks or "
        "commas between methods, commas between options), and a TOML file with settings of all.",
        show_default=False,
    ),
]
Algorithms = Annotated[str, typer.Option(help="The methods, for those who like to say so.")]
Seeds = Annotated[
    str | None,
    typer.Option(help="Seeds, separated by commas: 0,1,2 (default: the config file's, or 0).", show_default=False),
]
Folder = Annotated[Path, typer.Option(help="Folder for the runs, the table and the picture.")]


def methods_and_config(given: Sequence[str], algorithms: str) -> tuple[str, Path | None]:
    """Tell methods from a config file among the words of a command: the file ends in ``.toml``, or is there.

    Methods are named by these words or by ``--algorithms``, not by both.
    """
    from fedsmoo.algorithms import ALGORITHMS

    files = [w for w in given if w.endswith(".toml") or (Path(w).exists() and w.lower() not in ALGORITHMS)]
    methods = [word for word in given if word not in files]
    if len(files) > 1:
        raise FedsmooError(f"{' and '.join(files)} are two config files: give one, with settings of all methods")
    if methods and click.get_current_context().get_parameter_source("algorithms") is not ParameterSource.DEFAULT:
        raise FedsmooError(
            f"methods are given twice, as {' '.join(methods)} and as --algorithms {algorithms}: choose one"
        )
    return ",".join(methods) or algorithms, Path(files[0]) if files else None


def by_method(names: str, sets: Sequence[str]) -> tuple[list[Entry], list[str]]:
    """Tell ``--set fedsmoo.r=0.05``, which is for one method, from ``--set lr=0.05``, which is for all."""
    from fedsmoo.sweeps.methods import labels, parse_methods

    methods, common = parse_methods(names), []
    labels(methods)  # refuses what is named twice, before words are asked whose they are
    for word in sets:
        owner, dot, _ = word.partition("=")[0].rpartition(".")
        mine = [entry.options for entry in methods if entry.name == owner]
        shared = not dot or owner in BROUGHT  # such as model.hidden=32
        if not shared and not mine:
            known = [*(entry.name for entry in methods), *BROUGHT]
            raise FedsmooError(f"--set {word!r}: {unknown('method or part of this comparison', owner, known)}")
        for own in mine:
            key, value = split_word(word.removeprefix(f"{owner}."))
            if own.get(key, value) != value:
                raise FedsmooError(f"{key} of {owner} is given twice, as {own[key]} and as --set {word}: choose one")
            own[key] = value
        common += [word] if shared else []
    return methods, common


@contextmanager
def progress_worker(cells: Mapping[Path, Cell]) -> Iterator[Worker]:
    """Show the progress of a comparison: a bar, or a line for each method where standard error is no terminal.

    Yields a worker that tells what happens to the runs; Ctrl-C stops it.
    """
    from fedsmoo.runs.storage.reader import state
    from fedsmoo.sweeps.queue import Worker

    before = {folder for folder in cells if state(folder) == "finished"}
    waiting = list(dict.fromkeys(cell.method for cell in cells.values()))
    rounds = sum(c.config.rounds for c in cells.values())
    began = time.monotonic()

    def through(until: str | None = None) -> None:
        """Say of the methods before this one that they are done."""
        nonlocal began
        while waiting and waiting[0] != until:
            label = waiting.pop(0)
            mine = [folder for folder, cell in cells.items() if cell.method == label]
            done = sum(folder in before for folder in mine)
            if not sys.stderr.isatty():  # no progress bar there
                words = f", {done} done before" if done else ""
                seconds = time.monotonic() - began
                sys.stderr.write(f"{label}: {counted(len(mine) - done, 'run')} in {seconds:.0f} s{words}\n")
            began = time.monotonic()

    done = sum(cells[folder].config.rounds for folder in before)
    with interruptible() as asked, progress("rounds", rounds, done, last=False) as bar:

        def begun(config: Any, folder: Path, rounds: int) -> None:
            through(cells[folder].method)
            bar.skip(rounds, cells[folder].method)

        def failed(config: Any, folder: Path, why: str) -> None:
            bar.say(f"failed: {cells[folder].method}, seed {config.seed}: {why}")

        yield Worker(
            watch=lambda config, record: bar.move(record, waiting[0] if waiting else None),
            begun=begun,
            failed=failed,
            note=lambda line: bar.say(f"fedsmoo: {line}"),
            stop=asked,
        )
        if not asked():
            through()


def compare_methods(
    given: Given = None,
    algorithms: Algorithms = METHODS,
    seeds: Seeds = None,
    sets: Sets = None,
    out: Folder = Path("runs/compare"),
    trust: Trust = False,
    *,
    flags: dict[str, Any],
) -> None:
    from fedsmoo.sweeps.compare import open_comparison, refuse_others
    from fedsmoo.sweeps.methods import parse_methods, with_method_of

    require_single_process("fedsmoo compare")
    algorithms, config = methods_and_config(given or [], algorithms)
    algorithms = str(with_method_of(config, algorithms))
    words = {**flags, **dict(word.partition("=")[::2] for word in sets or ())}
    refuse_others([entry.name for entry in parse_methods(algorithms)], config, words, out, trust)
    own, common = by_method(algorithms, sets or [])
    refuse_two_words(flags, common)
    cells = open_comparison(own, seeds, config, out, {**flags, **dict(map(split_word, common))}, parse_word)
    carry_out_and_print(cells, out)


def carry_out_and_print(cells: Mapping[Path, Cell], out: Path, pack: int | None = None) -> None:
    """Carry out the runs of a comparison, and print it; ``pack`` as in :func:`carry_out_comparison`."""
    from fedsmoo.sweeps.compare import carry_out_comparison

    try:
        with progress_worker(cells) as worker:
            comparison = carry_out_comparison(cells, out, worker, pack)
    except KeyboardInterrupt:
        sys.stderr.write("stopped at once; go on from the last checkpoints with: the same command\n")
        raise typer.Exit(130) from None
    if comparison.outcome.left:
        sys.stderr.write(f"{resume_note(comparison.outcome)}; go on with: the same command\n")
        raise typer.Exit(130)
    print_comparison(comparison)
    if comparison.outcome.failed:
        console().print(f"failed: {', '.join(p.name for p in comparison.outcome.failed)}", soft_wrap=True)
        raise typer.Exit(1)


def resume_note(outcome: Outcome) -> str:
    """Say what a comparison that was stopped has saved."""
    from fedsmoo.runs.storage.reader import read_run, state

    begun = [folder for folder in outcome.left if state(folder) != "new"]
    if len(begun) != 1:
        return "everything is saved"
    run = read_run(begun[0])
    return f"saved after round {run.done} of {run.config.rounds}"


def print_comparison(comparison: Comparison) -> None:
    """Print the table, the best row bold where its lead over all others is more than chance."""
    if not comparison.runs:
        return
    screen, best = console(), comparison.winner
    for line, row in zip(comparison.table, (None, *comparison.rows), strict=True):
        style = "bold" if row is None or row is best else None
        screen.print(line, style=style, markup=False, soft_wrap=True)
    for line in comparison.notes:
        print_paragraph(screen, line)
    screen.print(f"curves: {comparison.curves}", markup=False, soft_wrap=True)
    if comparison.out is not None and not comparison.outcome.failed:
        next_step("fedsmoo report", comparison.out)


compare = with_settings(compare_methods, leave_out=("algorithm", "seed"))
