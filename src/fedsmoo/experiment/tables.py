"""The paper's tables: ours beside the printed numbers. What was not measured stays blank."""

from __future__ import annotations

import dataclasses
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fedsmoo.experiment.compare import human_bytes
from fedsmoo.experiment.ledger import Reached, paper_vectors, reached
from fedsmoo.experiment.published import published
from fedsmoo.experiment.render import Table
from fedsmoo.experiment.resolve import make_algorithm
from fedsmoo.experiment.results import Measured
from fedsmoo.experiment.sweep import Sweep

Smooth = Callable[[np.ndarray, int], np.ndarray]
Found = dict[str, Measured]
TARGET = 0.74  # of the communication and wall-clock tables
TEN = 10  # evaluations in a mean at the end of a run


class Grid:
    """The measured runs of a sweep by method and column, a list over seeds."""

    def __init__(self, sweep: Sweep, found: Found) -> None:
        self.methods = list(dict.fromkeys(c.method for c in sweep.cells))
        self.columns = list(dict.fromkeys(c.column for c in sweep.cells))
        self.notes: list[str] = list(sweep.about.get("notes", []))
        self.runs: dict[tuple[str, str], list[Measured]] = {}
        self.rounds = sorted({c.config.rounds for c in sweep.cells})
        for cell in sweep.cells:
            runs = self.runs.setdefault((cell.method, cell.column), [])
            if cell.identity in found:
                runs.append(found[cell.identity])
        self.most = max(map(len, self.runs.values()), default=0)  # seeds of the cell that has most

    def __getitem__(self, key: tuple[str, str]) -> list[Measured]:
        return self.runs.get(key, [])

    def footnotes(self) -> list[str]:
        """What made the numbers: hardware, versions, commits, seeds."""
        runs = [r for each in self.runs.values() for r in each]
        if not runs:
            return [*self.notes, "Nothing measured yet."]
        devices = sorted({str(r.facts.get("device", "?")) for r in runs})
        torches = sorted({str(r.facts.get("versions", {}).get("torch", "?")) for r in runs})
        commits = sorted({str(r.facts["commit"])[:10] for r in runs if r.facts.get("commit")})
        precisions = sorted({r.config.precision for r in runs if r.facts.get("device_type") != "cpu"})
        made = f"Measured on {', '.join(devices)} with torch {', '.join(torches)}"
        made += f", products in {', '.join(precisions)}" if precisions else ""
        made += f", commit {', '.join(commits)}" if commits else ""
        return [*self.notes, f"{made}; {self.seeds()}."]

    def seeds(self) -> str:
        """The seeds of most cells, then those of every row, or cell of a row, that has others."""
        has = {key: tuple(sorted({r.config.seed for r in runs})) for key, runs in self.runs.items() if runs}
        usual = Counter(has.values()).most_common(1)[0][0]
        words = [named(usual)]
        for method in self.methods:
            mine = {column: has[method, column] for column in self.columns if (method, column) in has}
            if len(set(mine.values())) == 1:
                words += [f"{method} {named(seeds)}" for seeds in set(mine.values()) if seeds != usual]
            else:
                words += [f"{method} ({column}) {named(seeds)}" for column, seeds in mine.items() if seeds != usual]
        return "; ".join(words)

    def spread(self, values: Sequence[float], digits: int = 2) -> str:
        """Mean, and the standard deviation over seeds where there are several; blank without values.

        One seed has no deviation; several, but fewer than another cell of the table has, are counted in brackets.
        """
        if not values:
            return ""
        mean = f"{statistics.fmean(values):.{digits}f}"
        if len(values) == 1:
            return mean
        fewer = f" ({len(values)} seeds)" if len(values) < self.most else ""
        return f"{mean} ± {statistics.stdev(values):.{digits}f}{fewer}"

    def rounds_to(self, key: tuple[str, str], target: float) -> str:
        """The mean round over seeds; a dash where no seed got there, a share where only some did.

        Fewer seeds than another cell of the table has are counted in brackets.
        """
        runs = self[key]
        if not runs:
            return ""
        found = hits(runs, target)
        mean = f"{statistics.fmean(h.round for h in found):.0f}" if found else "-"
        partly = f"{len(found)}/" if 0 < len(found) < len(runs) else ""
        fewer = "" if len(runs) == self.most else " seed" if len(runs) == 1 else " seeds"
        return f"{mean} ({partly}{len(runs)}{fewer})" if partly or fewer else mean


def named(seeds: Sequence[int]) -> str:
    """Seeds in words.

    >>> named((0,)), named((0, 2))
    ('seed 0', 'seeds 0, 2')
    """
    return f"{'seeds' if len(seeds) > 1 else 'seed'} {', '.join(map(str, seeds))}"


def noted(tables: Sequence[Table], notes: list[str]) -> list[Table]:
    """Tables of which the last carries the notes of all."""
    *others, end = tables
    return [*others, dataclasses.replace(end, notes=notes)]


def last(run: Measured) -> float:
    """Accuracy of the last round, in per cent."""
    return 100 * run.accuracies[-1]


def last_ten(run: Measured) -> float:
    """Mean accuracy of the last ten evaluated rounds, or of all if they are fewer, in per cent."""
    return 100 * statistics.fmean(run.accuracies[-TEN:])


def mean_of_last(runs: Sequence[Measured]) -> str:
    """What ``last_ten`` is for these runs, in words."""
    counts = {min(TEN, len(r.accuracies)) for r in runs} or {TEN}
    if len(counts) > 1:
        return "mean of last ten (or all)"
    return "mean of last ten" if counts == {TEN} else f"mean of last {counts.pop()}"


def measures(runs: Sequence[Measured]) -> list[str]:
    """The columns of an accuracy table.

    The authors' code, hence the paper, reports the best round on the test part: only that compares like with like.
    """
    return ["last round", mean_of_last(runs), "best round", "paper (best round)", "best − paper"]


def best(run: Measured) -> float:
    """Accuracy of the best round on the test part, in per cent: what the authors' code reports, hence the paper."""
    return 100 * max(run.accuracies)


def signed(ours: Sequence[float], paper: float | None, digits: int = 2) -> str:
    """Ours less the paper's."""
    return "" if not ours or paper is None else f"{statistics.fmean(ours) - paper:+.{digits}f}"


def number(value: Any, form: str = "g") -> str:
    return "" if value is None else str(value) if isinstance(value, str) else f"{value:{form}}"


def paper_accuracy(column: str, method: str) -> tuple[float | None, float | None]:
    """The printed accuracy and its half-width."""
    who, _, task = column.partition(" ")
    block = published()["accuracy"].get(who, {})
    if task not in block.get("columns", ()) or method not in block:
        return None, None
    k = block["columns"].index(task)
    return block[method][k], block[f"{method}_pm"][k]


def accuracy(grid: Grid, title: str, compact: bool = False) -> list[Table]:
    if compact:
        return [_compact(grid, title)]
    out = []
    for column in grid.columns:
        rows = []
        for method in grid.methods:
            runs, (paper, width) = grid[method, column], paper_accuracy(column, method)
            top = [best(r) for r in runs]
            printed = "" if paper is None else f"{paper:.2f} ± {width:.2f}"
            ours = [grid.spread([last(r) for r in runs]), grid.spread([last_ten(r) for r in runs]), grid.spread(top)]
            rows.append([method, *ours, printed, signed(top, paper)])
        shown = [r for m in grid.methods for r in grid[m, column]]
        out.append(Table(f"{title}: {column}", ["method", *measures(shown)], rows))
    return noted(out, grid.footnotes())


def _compact(grid: Grid, title: str) -> Table:
    """One table: a column's cell is our best round and, in brackets, how far it is from the paper's."""
    rows = []
    for method in grid.methods:
        cells = []
        for column in grid.columns:
            ours = [best(r) for r in grid[method, column]]
            difference = signed(ours, paper_accuracy(column, method)[0])
            cells.append(f"{grid.spread(ours)} ({difference})" if difference else grid.spread(ours))
        rows.append([method, *cells])
    how = "Best round on the test part, as the paper reports; in brackets the difference from the paper's, in points."
    return Table(title, ["method", *grid.columns], rows, [how, *grid.footnotes()])


def hits(runs: Sequence[Measured], target: float) -> list[Reached]:
    return [hit for r in runs if (hit := reached(r.history, target)) is not None]


def rounds(grid: Grid, title: str) -> list[Table]:
    out = []
    for column in grid.columns:
        who, _, task = column.partition(" ")
        block = published()["rounds_to"].get(who, {"columns": []})
        goals = [
            (k, int(c.rpartition(" to ")[2])) for k, c in enumerate(block["columns"]) if c.startswith(f"{task} to ")
        ]
        rows = []
        for method in grid.methods:
            cells = []
            for k, goal in goals:
                printed = block[method][k] if method in block else None
                cells += [grid.rounds_to((method, column), goal / 100), number(printed)]
            rows.append([method, *cells])
        header = ["method", *(word for _, g in goals for word in (f"to {g}%", "paper"))]
        out.append(Table(f"{title}: {column}", header, rows))
    return noted(out, grid.footnotes())


def communication(grid: Grid, title: str) -> list[Table]:
    column, printed = grid.columns[0], published()["communication"]
    spent = {m: hits(grid[m, column], TARGET) for m in grid.methods}
    real = {m: statistics.fmean(h.bytes for h in found) for m, found in spent.items() if found}
    counted, full = {}, {}
    for m in real:
        run = grid[m, column][0]
        method = make_algorithm(run.config.algorithm, run.config.algorithm_options)
        counted[m] = real[m] * paper_vectors(method) / (len(method.up) + len(method.down))
        full[m] = real[m] * run.facts.get("parameters_full", 1) / run.facts.get("parameters", 1)
    rows = []
    for m in grid.methods:
        relative = [f"{v[m] / v['FedAvg']:.2f}" if m in v and "FedAvg" in v else "" for v in (real, counted)]
        sizes = [human_bytes(v[m]) if m in v else "" for v in (real, full)]
        rows.append([m, grid.rounds_to((m, column), TARGET), *sizes, *relative, number(printed.get(m), ".2f")])
    header = ["method", "rounds", "bytes", "bytes, full model", "× FedAvg", "× FedAvg, paper's count", "paper"]
    note = "The paper counts FedCM and MoFedSAM as double both ways; they send one vector up and receive two."
    return [Table(title, header, rows, [note, *grid.footnotes()])]


def wallclock(grid: Grid, title: str) -> list[Table]:
    column, printed = grid.columns[0], published()["seconds_per_round"]
    block = published()["rounds_to"]["10%-of-100"]
    k = block["columns"].index("cifar10.pathological-3 to 74")
    rows, packed = [], 1
    for m in grid.methods:
        runs = grid[m, column]
        packed = max([packed, *(int(r.facts.get("packed", 1)) for r in runs)])
        train = [statistics.median(r.curve["seconds_train"]) for r in runs]
        evaluate = [statistics.median(r.curve["seconds_eval"]) for r in runs]
        paper, goal = printed.get(m), block[m][k]
        faster = f"{paper / statistics.fmean(train):.1f}×" if train and paper else ""
        found = hits(runs, TARGET)
        total = f"{statistics.fmean(h.seconds for h in found):.1f}" if found else "-" if runs else ""
        paper_total = f"{paper * goal:.0f}" if paper and isinstance(goal, int) else "-"
        rows.append(
            [m, grid.spread(train, 3), grid.spread(evaluate, 3), number(paper, ".2f"), faster, total, paper_total]
        )
    header = ["method", "s/round", "evaluation", "paper s/round", "paper / ours", "s to 74%", "paper s to 74%"]
    notes = [
        "Medians over rounds, training and evaluation apart. The paper timed an A100 and counted the scoring of 60,000 "
        "images: another GPU and more work, so the ratio is not the code's alone."
    ]
    if packed > 1:
        notes.append(f"Up to {packed} runs advanced in one batch; each is charged its share of the time.")
    return [Table(title, header, rows, [*notes, *grid.footnotes()])]


def ablation(grid: Grid, title: str) -> list[Table]:
    printed, column = published()["ablation"], grid.columns[0]
    rows = []
    for name in grid.methods:
        runs = grid[name, column]
        marks = ["✓" if part in name else "" for part in ("dynamic", "sam", "correction")]
        ours = [grid.spread([measure(r) for r in runs]) for measure in (last, last_ten, best)]
        paper = printed.get(name)
        rows.append([name, *marks, *ours, number(paper, ".2f"), signed([best(r) for r in runs], paper)])
    parts = ["parts", "regulariser", "SAM", "correction"]
    shown = [r for name in grid.methods for r in grid[name, column]]
    return [Table(title, [*parts, *measures(shown)], rows, grid.footnotes())]


def sensitivity(grid: Grid, title: str) -> list[Table]:
    method = grid.methods[0]
    runs = {c: grid[method, c] for c in grid.columns}
    rows = [
        [c, grid.spread([last(r) for r in found]), grid.spread([last_ten(r) for r in found])]
        for c, found in runs.items()
    ]
    header = ["setting", "last round", mean_of_last([r for found in runs.values() for r in found])]
    return [Table(title, header, rows, grid.footnotes())]


def flatness(grid: Grid, title: str) -> list[Table]:
    printed = published()["flatness"]
    pairs = [(m, c) for m in grid.methods for c in grid.columns]

    def drift(run: Measured) -> float:
        return statistics.fmean(d for d in run.curve["drift"][-TEN:] if d is not None)

    def of_hessian(name: str) -> Callable[[Measured], float | None]:
        return lambda run: run.facts.get("hessian", {}).get(name)

    rows = []
    for name, paper, value in (
        ("client drift", "client_drift", drift),
        ("Hessian, top eigenvalue", "hessian_top_eigenvalue", of_hessian("top")),
        ("Hessian, trace", "hessian_trace", of_hessian("trace")),
    ):
        cells = []
        for m, c in pairs:
            ours = [v for r in grid[m, c] if (v := value(r)) is not None]
            wanted = f"{m} {c.rpartition('.dirichlet')[1].lstrip('.')}{c.rpartition('.dirichlet')[2]}"
            k = printed["columns"].index(wanted) if wanted in printed["columns"] else None
            digits = 3 if paper == "client_drift" else 1
            cells += [grid.spread(ours, digits), number(None if k is None else printed[paper][k])]
        rows.append([name, *cells])
    header = ["", *(word for m, c in pairs for word in (f"{m} {c.rpartition(' ')[2].partition('.')[2]}", "paper"))]
    few = any(len(r.curve["drift"]) < TEN for m, c in pairs for r in grid[m, c])
    note = "Client drift: the mean squared distance of a client's model from the global one, over the last ten rounds"
    note += " (over all of a run that has fewer)." if few else "."
    return [Table(title, header, rows, [note, *grid.footnotes()])]


def curves(grid: Grid, title: str, smooth: Smooth, window: int) -> list[Table]:
    out = []
    for column in grid.columns:
        lengths = [len(r.accuracies) for m in grid.methods for r in grid[m, column]]
        steps = max(lengths, default=0)
        at = sorted({max(1, steps * k // 8) for k in range(1, 9)}) if steps else []
        rows = []
        for m in grid.methods:
            smoothed = [smooth(100 * np.array(r.accuracies), window) for r in grid[m, column]]
            cells = [grid.spread([float(s[min(t, len(s)) - 1]) for s in smoothed]) for t in at]
            rows.append([m, *cells])
        if at:
            out.append(Table(f"{title}: {column}", ["method", *(f"evaluation {t}" for t in at)], rows))
    return noted(out or [Table(title, ["method"], [[m] for m in grid.methods])], grid.footnotes())
