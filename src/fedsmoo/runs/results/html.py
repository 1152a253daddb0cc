"""Results as small tables: in lines for a prompt, and in plain HTML for a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from fedsmoo.metrics.quantity import quantity
from fedsmoo.runs.traffic import human_bytes

if TYPE_CHECKING:
    from fedsmoo.runs.results.result import Result


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows of words as lines: the first column to the left, the others to the right.

    >>> aligned([["method", "n"], ["FedAvg", "10"]])
    ['method   n', 'FedAvg  10']
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(w.rjust(n) if k else w.ljust(n) for k, (w, n) in enumerate(zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", bold: int | None = None) -> str:
    """Return a table, the first column to the left and the others to the right; all words are escaped."""

    def cells(words: Sequence[str], tag: str, strong: bool = False) -> str:
        style = [f'style="text-align:{"left" if k == 0 else "right"}"' for k in range(len(words))]
        inside = [f"<b>{escape(w)}</b>" if strong else escape(w) for w in words]
        return "<tr>" + "".join(f"<{tag} {s}>{w}</{tag}>" for s, w in zip(style, inside, strict=True)) + "</tr>"

    head = f"<thead>{cells(header, 'th')}</thead>" if header else ""
    body = "".join(cells(row, "td", k == bold) for k, row in enumerate(rows))
    return f"<table><caption>{escape(caption)}</caption>{head}<tbody>{body}</tbody></table>"


def result_html(result: Result) -> str:
    """Return what a result is, in a few rows."""
    config, history, facts = result.config, result.history, {"rounds": str(len(result.history))}
    if config is not None:
        stopped = ", interrupted" if result.interrupted else ", stopped"
        left = "" if len(history) == config.rounds else f" of {config.rounds}{stopped}"
        facts = {"data": config.dataset, "model": config.model, "rounds": f"{len(history)}{left}"}
        facts["clients"] = f"{config.clients}, {config.cohort} in a round"
    facts |= score_rows(result)
    facts["sent"] = human_bytes(sum(r.bytes_up + r.bytes_down for r in history))
    facts["seconds"] = f"{sum(r.seconds_train + r.seconds_eval for r in history):.1f}"
    if result.folder is not None:
        facts["folder"] = str(result.folder)
    return table([], list(facts.items()), result.label)


def score_rows(result: Result) -> Mapping[str, str]:
    """Return how well the model does at the end, as far as that was measured."""
    tested = [r for r in result.history if r.evaluated]
    losses = [r.train_loss for r in result.history if r.train_loss is not None]
    found = {result.lead: tested[-1].score} if tested else {}
    if tested:
        found |= {quantity(n, tested[-1].lower): v for n, v in tested[-1].metrics.items()}
    texts = {q.title: "no number" if v is None else q.text(v) for q, v in found.items()}
    out = {title: f"{words} (round {tested[-1].round})" for title, words in texts.items()}
    return out | ({"training loss": f"{losses[-1]:.4f}"} if losses else {})
