"""Table 1 at a glance: each method's rank in each column, coloured by its distance to the paper."""

from __future__ import annotations

from itertools import groupby

from fedsmoo.paper.cells import Grid
from fedsmoo.paper.standing import HOW, Standing, standings

STRONGEST = 65  # per cent of colour, in the cell that is farthest from the paper


def group_of(column: str) -> str:
    """Return what the columns of one block of the paper's table have in common.

    >>> group_of("5%-of-200 cifar10.dirichlet-0.1")
    'CIFAR-10, 10 of 200 clients'
    """
    who, _, task = column.partition(" ")
    return f"{task.partition('.')[0].replace('cifar', 'CIFAR-')}, 10 of {who.rpartition('-')[2]} clients"


def split_of(column: str) -> str:
    """Return how a column's samples are divided, in words.

    >>> split_of("5%-of-200 cifar10.pathological-3"), split_of("5%-of-200 cifar10.dirichlet-0.1")
    ('3 classes each', 'Dirichlet 0.1')
    """
    rule, _, number = column.partition(".")[2].partition("-")
    return f"{number} classes each" if rule == "pathological" else f"{rule.capitalize()} {number}"


def cell(standing: Standing | None, far: float, column: str) -> str:
    """Return a cell: the rank, the distance below it, red below the paper and blue above."""
    if standing is None:
        return "<td></td>"
    gap = standing.gap
    kind = "none" if gap is None else "above" if gap >= 0 else "below"
    share = 0 if gap is None else round(STRONGEST * abs(gap) / far)
    first = " first" if standing.rank == 1 else ""
    words = "" if gap is None else f"<small>{gap:+.1f}</small>"
    rank = "?" if standing.rank is None else standing.rank
    return f'<td class="{kind}{first}" style="--share: {share}%" data-column="{column}">{rank}{words}</td>'


def heat_map(grid: Grid) -> str:
    """Return the map as a table in HTML, a block of rows for each data set and number of clients."""
    found = standings(grid)
    far = max(abs(s.gap) for s in found.values() if s.gap is not None)
    head = "".join(f"<th>{method}</th>" for method in grid.methods)
    rows = [f"<thead><tr><th></th>{head}</tr></thead>"]
    for group, columns in groupby((c for c in grid.columns if any((m, c) in found for m in grid.methods)), group_of):
        rows.append(f'<tbody><tr class="group"><th colspan="{len(grid.methods) + 1}">{group}</th></tr>')
        for column in columns:
            cells = "".join(cell(found.get((m, column)), far, column) for m in grid.methods)
            rows.append(f"<tr><th>{split_of(column)}</th>{cells}</tr>")
        rows.append("</tbody>")
    table = "".join(rows)
    how = HOW.replace("in brackets", "below it").partition(" n counts")[0]
    return f'<div class="heat" tabindex="0"><table class="heat">{table}</table></div>\n\n{how}\n'
