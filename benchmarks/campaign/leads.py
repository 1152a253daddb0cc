"""The table of docs/results.md that sets FedSMOO beside MoFedSAM in all columns; documents/tables.py writes it."""

from __future__ import annotations

import statistics

from benchmarks.campaign.columns import SEEDS, runs
from fedsmoo.paper.cells import best, last_ten
from fedsmoo.paper.experiments import published
from fedsmoo.paper.render import Table, render
from fedsmoo.sweeps.bases import description
from fedsmoo.sweeps.paired import paired_difference

ONE, OTHER = "FedSMOO", "MoFedSAM"


def leads() -> str:
    """How far FedSMOO ends from MoFedSAM, how far both are from the paper, and FedSMOO's place among the methods."""
    rows = []
    for column in description("accuracy")["columns"]:
        who, _, task = column.partition(" ")
        block = published()["accuracy"][who]
        printed = {m: block[m][block["columns"].index(task)] for m in (ONE, OTHER)}
        found, first = runs(column, SEEDS), runs(column)
        ends = {m: {run.config.seed: last_ten(run) for run in found[m]} for m in (ONE, OTHER)}
        pair = paired_difference(ends[ONE], ends[OTHER])
        assert pair is not None
        ahead = f"{pair.mean:+.2f}" + ("" if pair.half is None else f" ± {pair.half:.2f}")
        order = sorted(first, key=lambda m: -last_ten(first[m][0]))
        rows.append([
            column, f"**{ahead}**" if pair.clear else ahead, f"{printed[ONE] - printed[OTHER]:+.2f}",
            *(f"{statistics.fmean(map(best, found[m])) - printed[m]:+.2f}" for m in (ONE, OTHER)),
            str(order.index(ONE) + 1),
        ])  # fmt: skip
    head = ["column", f"{ONE} − {OTHER}", "the same in the paper", f"{ONE} − paper's", f"{OTHER} − paper's",
            f"place of {ONE}"]  # fmt: skip
    note = (
        "Points of test accuracy. First: the mean of the last ten rounds, with a 95% interval over three seeds, paired "
        "(bold: clear of zero), or of seed 0 alone. The next three are of best rounds, which the paper reports. "
        "Last: the place of FedSMOO among the eight methods by the last ten, seed 0."
    )
    return render([Table("FedSMOO beside MoFedSAM, and both beside the paper", head, rows, [note])], "markdown").rstrip(
        "\n"
    )
