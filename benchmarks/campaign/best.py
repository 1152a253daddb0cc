"""FedSMOO with what the search found, in the columns of the paper's table 1: ``benchmarks/documents/tables.py`` writes
it into docs/results.md, and its runs are those of experiments/campaign/14e, 14f, 14h and 14i.
"""

from __future__ import annotations

from benchmarks.campaign.columns import runs
from benchmarks.campaign.plan import made
from fedsmoo.paper.cells import last_ten
from fedsmoo.paper.render import Table, render
from fedsmoo.runs.origin.identity import identity
from fedsmoo.sweeps.bases import description
from fedsmoo.sweeps.results import Measured

DECAY, RADII = 0.998, (0.1, 0.03)


def with_other(column: str, r: float, lr_decay: float = DECAY) -> Measured | None:
    """FedSMOO in a column, seed 0, with another radius and decay than the paper's; none where it was not measured."""
    config = runs(column)["FedSMOO"][0].config
    return made().get(
        identity(config.replace(lr_decay=lr_decay, algorithm_options={**config.algorithm_options, "r": r}))
    )


def best() -> str:
    """The last ten of FedSMOO with three settings, and MoFedSAM's, in every column."""
    rows = []
    for column in description("accuracy")["columns"]:
        papers, rival = (runs(column)[m][0] for m in ("FedSMOO", "MoFedSAM"))
        found = [papers, *(with_other(column, r) for r in RADII), rival]
        rows.append([column, *("" if run is None else f"{last_ten(run):.2f}" for run in found)])
    header = ["column", "FedSMOO, the paper's", *(f"r = {r}, decay {DECAY}" for r in RADII), "MoFedSAM"]
    note = (
        "Test accuracy (%), mean of the last ten rounds, seed 0; a blank was not measured. The paper's radius is 0.1, "
        "its decay 0.9995. MoFedSAM's settings are those that the search found best for it, and the paper's."
    )
    return render([Table("FedSMOO with a faster decay", header, rows, [note])], "markdown").rstrip("\n")
