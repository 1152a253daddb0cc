"""The paper's tables: ours beside the printed numbers. What was not measured stays blank."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence

import numpy as np

from fedsmoo.metrics.average import mean
from fedsmoo.paper.cells import (
    TEN,
    Found,
    Grid,
    best,
    bytes_beside,
    hits,
    last,
    last_ten,
    mean_of_last,
    number_text,
    personal,
    rounds_to,
    seeds_of,
    signed,
    spent_to,
    spread,
    validated,
)
from fedsmoo.paper.experiments import paper_accuracy, published
from fedsmoo.paper.render import Table
from fedsmoo.paper.standing import summary
from fedsmoo.runs.results.curves import window_of
from fedsmoo.runs.traffic import human_bytes
from fedsmoo.sweeps.paired import lead_in_words
from fedsmoo.sweeps.results import Measured

__all__ = ["Found", "Grid"]
Smooth = Callable[[np.ndarray, int], np.ndarray]
BEST = (
    "n counts seeds, ± is the standard deviation over them. Best on test is the maximum over the rounds on the test "
    "set, too high by construction: it is there because the paper reports it, and compares with the paper's alone."
)

REACHED = (
    "n counts seeds, ± is the standard deviation over those that reached the target; in brackets how many of the n "
    "did, where not all; a dash: none."
)


def noted(tables: Sequence[Table], notes: list[str]) -> list[Table]:
    """Add notes to the last of some tables."""
    *others, end = tables
    return [*others, dataclasses.replace(end, notes=[*end.notes, *notes])]


def measures(runs: Sequence[Measured]) -> list[str]:
    """Return the headings of an accuracy table: the count of seeds, then the mean at the end, then the others."""
    chosen = ["by validation"] if any(validated(r) is not None for r in runs) else []
    chosen += ["personal", "worst tenth"] if any(personal(r) for r in runs) else []
    return ["n", mean_of_last(runs), *chosen, "last round", "best on test", "paper's best", "− paper's"]


def measured(runs: Sequence[Measured], beside: Sequence[Measured], paper: float | None, printed: str) -> list[str]:
    """Return a row's cells under :func:`measures`; ``beside`` are all runs of the table, which decide its columns."""
    top = [best(r) for r in runs]
    cells = [seeds_of(runs), spread([last_ten(r) for r in runs])]
    if any(validated(r) is not None for r in beside):
        cells.append(spread([v for r in runs if (v := validated(r)) is not None]))
    if any(personal(r) for r in beside):
        own = [pair for r in runs if (pair := personal(r))]
        cells += [spread([pair[k] for pair in own]) for k in range(2)]
    return [*cells, spread([last(r) for r in runs]), spread(top), printed, signed(top, paper)]


def accuracy(grid: Grid, title: str, compact: bool = False) -> list[Table]:
    """Make the table of test accuracies, one for each column and a summary of several, or a compact one of all."""
    if compact:
        return [_compact(grid, title)]
    out = []
    for column in grid.columns:
        rows, shown = [], [r for m in grid.methods for r in grid[m, column]]
        for method in grid.methods:
            paper, width = paper_accuracy(column, method)
            printed = "" if paper is None else f"{paper:.2f} ± {width:.2f}"
            rows.append([method, *measured(grid[method, column], shown, paper, printed)])
        first = lead_in_words({m: grid.by_seed((m, column), last_ten) for m in grid.methods})
        words = [f"{mean_of_last(shown).capitalize()}, {first}"] if first else []
        out.append(Table(f"{title}: {column}", ["method", *measures(shown)], rows, words))
    if len(grid.columns) > 1 and len(grid.methods) > 1:
        out.append(summary(grid, title))
    return noted(out, [BEST, *grid.footnotes()])


def _compact(grid: Grid, title: str) -> Table:
    """Make one table of all columns: in a cell our best on test and, in brackets, how far it is from the paper's."""
    rows = []
    for method in grid.methods:
        cells = []
        for column in grid.columns:
            ours = [best(r) for r in grid[method, column]]
            difference = signed(ours, paper_accuracy(column, method)[0])
            cells.append(f"{grid.spread(ours)} ({difference})" if difference else grid.spread(ours))
        rows.append([method, *cells])
    how = "Best on test; in brackets the difference from the paper's, in points."
    return Table(title, ["method", *grid.columns], rows, [how, BEST, *grid.footnotes()])


def rounds(grid: Grid, title: str) -> list[Table]:
    """Make the table of rounds to a target accuracy, for each column."""
    out = []
    for column in grid.columns:
        who, _, task = column.partition(" ")
        block = published()["rounds_to"].get(who, {"columns": []})
        goals = [
            (k, int(c.rpartition(" to ")[2])) for k, c in enumerate(block["columns"]) if c.startswith(f"{task} to ")
        ]
        rows = []
        for method in grid.methods:
            runs = grid[method, column]
            cells = [seeds_of(runs)]
            for k, per_cent in goals:
                printed = block[method][k] if method in block else None
                cells += [rounds_to(runs, per_cent / 100), number_text(printed)]
            rows.append([method, *cells])
        header = ["method", "n", *(word for _, g in goals for word in (f"to {g}%", "paper"))]
        out.append(Table(f"{title}: {column}", header, rows))
    return noted(out, [REACHED, *grid.footnotes()])


def goal() -> tuple[str, float]:
    """Return the printed column up to which bytes and seconds are counted, and its accuracy."""
    column = published()["communication"]["goal"]
    return column, int(column.rpartition(" to ")[2]) / 100


def communication(grid: Grid, title: str) -> list[Table]:
    """Make the table of bytes to a target accuracy, as they travel and as the paper counts."""
    column, printed, (_, target) = grid.columns[0], published()["communication"], goal()
    spent = {m: hits(grid[m, column], target) for m in grid.methods}
    real = {m: mean(h.bytes for h in found) for m, found in spent.items() if found}
    more = {m: mean(h.bytes_paper for h in found) / real[m] for m, found in spent.items() if found}
    full = {}
    for m in real:
        facts = grid[m, column][0].facts
        full[m] = real[m] * facts.get("parameters_full", 1) / (facts.get("parameters") or 1)
    rows = []
    for m in grid.methods:
        ratio = bytes_beside(grid[m, column], grid["FedAvg", column], target)
        relative = [""] * 2 if ratio is None else [f"{r:.2f}" for r in (ratio, ratio * more[m] / more["FedAvg"])]
        sizes = [human_bytes(v[m]) if m in v else "" for v in (real, full)]
        many = [seeds_of(grid[m, column]), rounds_to(grid[m, column], target)]
        rows.append([m, *many, *sizes, *relative, number_text(printed.get(m), ".2f")])
    header = ["method", "n", "rounds", "bytes", "bytes, full model", "× FedAvg", "× FedAvg, paper's count", "paper"]
    notes = [
        REACHED,
        "Bytes are means over the same seeds as the rounds; × FedAvg is over those with which both reached the target.",
        "The paper counts FedCM and MoFedSAM as double both ways; they send one vector up and receive two.",
    ]
    return [Table(title, header, rows, [*notes, *grid.footnotes()])]


def wallclock(grid: Grid, title: str) -> list[Table]:
    """Make the table of seconds a round, and to a target accuracy."""
    column, printed = grid.columns[0], published()["seconds_per_round"]
    block = published()["rounds_to"]["10%-of-100"]
    wanted, target = goal()
    k = block["columns"].index(wanted)
    rows, packs = [], set()
    for m in grid.methods:
        runs = grid[m, column]
        together = sorted({int(r.facts.get("packed", 1)) for r in runs})
        packs.update(together)
        train = [statistics.median(r.curve["seconds_train"]) for r in runs]
        evaluate = [statistics.median(evaluation_seconds(r)) for r in runs]
        paper, needed = printed.get(m), block[m][k]
        faster = f"{paper / mean(train):.1f}×" if train and paper else ""
        total = spent_to(runs, target, lambda found: spread([h.seconds for h in found], 1))
        paper_total = f"{paper * needed:.0f}" if paper and isinstance(needed, int) else "-"
        shared = ", ".join(map(str, together))
        times = [spread(train, 3), spread(evaluate, 3)]
        rows.append([m, seeds_of(runs), shared, *times, number_text(paper, ".2f"), faster, total, paper_total])
    header = [
        "method",
        "n",
        "batch",
        "s/round",
        "evaluation",
        "paper's",
        "ratio",
        f"s to {100 * target:g}%",
        f"paper's to {100 * target:g}%",
    ]
    notes = [
        REACHED,
        "Medians over rounds, training and evaluation apart. The paper timed an A100 and counted the scoring of 60,000 "
        "images: another GPU and more work, so the ratio is not the code's alone.",
    ]
    notes.append("Batch: how many runs advanced together, each charged its share of the time.")
    if len(packs) > 1:
        notes.append(
            "Rows of different batches do not compare: a run in a batch of several takes less than one alone. A row "
            "with two is the mean over seeds that ran in both."
        )
    return [Table(title, header, rows, [*notes, *grid.footnotes()])]


def evaluation_seconds(run: Measured) -> list[float]:
    """Return the seconds of each evaluation; rounds without one take none, and are no evaluations."""
    rounds = zip(run.curve["seconds_eval"], run.history, strict=True)
    return [seconds for seconds, record in rounds if record.evaluated]


def ablation(grid: Grid, title: str) -> list[Table]:
    """Make the table of FedSMOO's parts, one after the other."""
    printed, column = published()["ablation"], grid.columns[0]
    rows, shown = [], [r for name in grid.methods for r in grid[name, column]]
    for name in grid.methods:
        marks = ["✓" if part in name else "" for part in ("dynamic", "sam", "correction")]
        paper = printed.get(name)
        rows.append([name, *marks, *measured(grid[name, column], shown, paper, number_text(paper, ".2f"))])
    parts = ["parts", "regulariser", "SAM", "correction"]
    return [Table(title, [*parts, *measures(shown)], rows, [BEST, *grid.footnotes()])]


def sensitivity(grid: Grid, title: str) -> list[Table]:
    """Make the table of accuracies over the values of one setting after the other."""
    method = grid.methods[0]
    runs = {c: grid[method, c] for c in grid.columns}
    rows = [
        [c, str(len(found)) if found else "", spread([last_ten(r) for r in found]), spread([last(r) for r in found])]
        for c, found in runs.items()
    ]
    header = ["setting", "n", mean_of_last([r for found in runs.values() for r in found]), "last round"]
    return [Table(title, header, rows, ["n counts seeds, ± is the standard deviation over them.", *grid.footnotes()])]


def drift_at_the_end(run: Measured, column: str) -> float | None:
    """Return the mean drift in the last ten rounds in which some client took part; none in older files."""
    there = [d for d in run.curve.get(column, [])[-TEN:] if d is not None]
    return mean(there) if there else None


def of_hessian(run: Measured, name: str) -> float | None:
    """Return what was measured of a run's Hessian; none where nothing was."""
    return run.facts.get("hessian", {}).get(name)


# Of each row its name, what the paper's is called in published.toml, digits, and ours of a run.
FLATNESS: tuple[tuple[str, str, int, Callable[[Measured], float | None]], ...] = (
    ("client drift, before", "client_drift", 3, lambda run: drift_at_the_end(run, "drift")),
    ("client drift, after", "client_drift", 3, lambda run: drift_at_the_end(run, "drift_after")),
    ("Hessian, top eigenvalue", "hessian_top_eigenvalue", 1, lambda run: of_hessian(run, "top")),
    ("Hessian, trace", "hessian_trace", 1, lambda run: of_hessian(run, "trace")),
)


def flatness(grid: Grid, title: str) -> list[Table]:
    """Make the table of client drift and of the Hessian."""
    printed = published()["flatness"]
    pairs = [(m, c) for m in grid.methods for c in grid.columns]
    rows = []
    for name, paper, digits, value in FLATNESS:
        cells = []
        for m, c in pairs:
            ours = [v for r in grid[m, c] if (v := value(r)) is not None]
            wanted = f"{m} {c.rpartition('.dirichlet')[1].lstrip('.')}{c.rpartition('.dirichlet')[2]}"
            k = printed["columns"].index(wanted) if wanted in printed["columns"] else None
            cells += [grid.spread(ours, digits), number_text(None if k is None else printed[paper][k])]
        rows.append([name, *cells])
    header = ["", *(word for m, c in pairs for word in (f"{m} {c.rpartition(' ')[2].partition('.')[2]}", "paper"))]
    few = any(len(r.curve["drift"]) < TEN for m, c in pairs for r in grid[m, c])
    note = (
        "Client drift: the mean of ||w_i - w||^2, squared Euclidean, over the cohort and over the last ten rounds"
        f"{' (over all of a run that has fewer)' if few else ''}; w is the global model before the server's step, "
        "which the clients were sent, or after it. The paper's table heads its row with w^t, its text says w^(t+1): "
        "its numbers stand in both. Older files do not have the second."
    )
    return [Table(title, header, rows, [note, *grid.footnotes()])]


def curves(grid: Grid, title: str, smooth: Smooth, window: int) -> list[Table]:
    """Make the table of smoothed accuracies at eight points of the curves, for each column."""
    out = []
    for column in grid.columns:
        lengths = [len(r.scores) for m in grid.methods for r in grid[m, column]]
        steps = max(lengths, default=0)
        at = sorted({max(1, steps * k // 8) for k in range(1, 9)}) if steps else []
        rows = []
        for m in grid.methods:
            # The window is in rounds; where only every tenth was evaluated, a tenth as many points lie in it.
            windows = [window_of([x.round for x in r.history if x.evaluated], window) for r in grid[m, column]]
            values = [r.lead.factor * np.array(r.scores) for r in grid[m, column]]
            smoothed = [smooth(v, points) for v, points in zip(values, windows, strict=True)]
            cells = [grid.spread([float(s[min(t, len(s)) - 1]) for s in smoothed]) for t in at]
            rows.append([m, *cells])
        if at:
            out.append(Table(f"{title}: {column}", ["method", *(f"evaluation {t}" for t in at)], rows))
    return noted(out or [Table(title, ["method"], [[m] for m in grid.methods])], grid.footnotes())
