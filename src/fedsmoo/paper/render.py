"""A table of text as plain text, Markdown, LaTeX or CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from fedsmoo.core import untrusted
from fedsmoo.core.errors import unknown


@dataclass(frozen=True)
class Table:
    """A title, a header, rows of text (the first column to the left, the others to the right), and notes below."""

    title: str
    header: list[str]
    rows: list[list[str]]
    notes: list[str] = field(default_factory=list)


def harmless(table: Table) -> Table:
    """Return a table without control characters, which a terminal would obey: results may be a stranger's."""
    title, *notes = (untrusted.text(line, len(line)) for line in (table.title, *table.notes))
    rows = [[untrusted.text(cell) for cell in row] for row in table.rows]
    return Table(title, table.header, rows, notes)


def text(table: Table) -> str:
    """Align the columns for a terminal."""
    table = harmless(table)
    lines = [table.header, *table.rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(table.header))]

    def line(cells: Sequence[str]) -> str:
        first, *rest = (
            c.ljust(w) if k == 0 else c.rjust(w) for k, (c, w) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join([first, *rest]).rstrip()

    body = [table.title, line(table.header), "  ".join("-" * w for w in widths), *map(line, table.rows)]
    return "\n".join([*body, *table.notes]) + "\n"


def markdown(table: Table) -> str:
    """Write a pipe table under a bold title."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"

    rule = "|---|" + "---:|" * (len(table.header) - 1)
    body = [f"**{table.title}**", "", line(table.header), rule, *map(line, table.rows)]
    return "\n".join([*body, *(f"\n{note}" for note in table.notes)]) + "\n"


ESCAPES = {
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
    "#": r"\#",
    "±": r"$\pm$",
    "−": "$-$",
    "×": r"$\times$",
    "✓": r"\checkmark",
}


def latex(table: Table) -> str:
    """Write a ``tabular`` with booktabs rules."""

    def escaped(words: str) -> str:
        return "".join(ESCAPES.get(ch, ch) for ch in words)

    def line(cells: Sequence[str]) -> str:
        return "  " + " & ".join(map(escaped, cells)) + r" \\"

    head = [r"\begin{table}[t]", r"\centering", rf"\caption{{{escaped(' '.join([table.title + '.', *table.notes]))}}}"]
    body = [rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}", r"  \toprule", line(table.header), r"  \midrule"]
    tail = [r"  \bottomrule", r"\end{tabular}", r"\end{table}"]
    return "\n".join([*head, *body, *map(line, table.rows), *tail]) + "\n"


def as_csv(table: Table) -> str:
    """Write comma-separated values, the table's title in the first column."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["table", *table.header])
    writer.writerows([table.title, *row] for row in table.rows)
    return out.getvalue()


FORMATS = {"text": text, "markdown": markdown, "latex": latex, "csv": as_csv}


def render(tables: Sequence[Table], form: str) -> str:
    """Write tables one after the other, in a format by name; raises a ``FedsmooError`` for an unknown one."""
    if form not in FORMATS:
        raise unknown("format", form, FORMATS)
    parts = [FORMATS[form](harmless(t)) for t in tables]
    if form == "csv":  # one header for neighbours that share it
        same = [k > 0 and t.header == tables[k - 1].header for k, t in enumerate(tables)]
        return "".join(p.partition("\n")[2] if s else p for p, s in zip(parts, same, strict=True))
    return "\n".join(parts)
