"""The rounds of a run as a page holds them: columns of numbers, as JSON text.

A number costs ten bytes as text and 32 as an object: a page of hundreds of runs is put together from texts.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields
from typing import Any

from fedsmoo.core.untrusted import number, text
from fedsmoo.metrics.quantity import ACCURACY, Quantity, quantity
from fedsmoo.runs.record import RARE, Record
from fedsmoo.runs.storage.names import METRICS
from fedsmoo.runs.storage.reader import StoredRun

# page name, name in a round's record, significant digits
COLUMNS = (
    ("acc", "test_accuracy", 8),
    ("loss", "test_loss", 5),
    ("train", "train_loss", 5),
    ("drift", "drift", 4),
    ("up", "bytes_up", 12),
    ("down", "bytes_down", 12),
    ("sec", "seconds_train", 4),
)
HELD = (  # only where samples were held out
    ("val", "validation_accuracy", 8),
    ("own", "personal_accuracy", 8),
    ("deviation", "personal_deviation", 8),
    ("worst", "personal_worst_tenth", 8),
)
OTHERWISE = ("metrics", "lower", "validation_metrics", "personal_score")  # of runs that the accuracy does not lead
# In the order of a line.
NAMES = ("round", *(name for _, name, _ in COLUMNS), "probes", *(name for _, name, _ in HELD), *OTHERWISE)
NOTHING = "null"
TABLE, LIST = rb"\{[^{}]*\}", rb"\[[^\[\]]*\]"
KINDS = {"cohort": rb"\[[0-9, ]*\]", "lower": LIST}
KINDS |= dict.fromkeys(("probes", "changes", "metrics", "validation_metrics"), TABLE)
NUMBER = rb"[-+.e0-9nul]+"


def pattern() -> re.Pattern[bytes]:
    """Return what matches a line of metrics as a run writes it, with a group for each of ``NAMES``."""
    parts: list[bytes] = []
    for field in fields(Record):
        group = b"(%b)" if field.name in NAMES else b"%b"
        said = b'"%b": %b' % (field.name.encode(), group % KINDS.get(field.name, NUMBER))
        parts.append(b"(?:, %b)?" % said if field.name in RARE else b", %b" % said if parts else said)
    return re.compile(rb"^\{%b\}$" % b"".join(parts), re.MULTILINE)


LINE = pattern()


def curves(run: StoredRun, sound: bool = True) -> str:
    """Return a run's rounds as a JSON object: ``rounds``, a column for each of ``COLUMNS``, and the ``probes``.

    Where its metrics are not ``sound`` there are none.
    """
    written_so = as_written(run.files.content(METRICS) or b"") if sound else None
    values = written_so or by_row(list(run.rows()) if sound else [])
    probes: dict[str, list[list[Any]]] = {}
    for at, extra in zip(values["round"], values["probes"], strict=True):
        if extra and isinstance(extra, dict):
            for name, value in list(extra.items())[:50]:
                probes.setdefault(text(name, 80), []).append([at, number(value)])
    lead = led_otherwise(values)
    none = without_score(values)
    held = [c for c in HELD if any(v is not None for v in values[c[1]])]
    parts = {"rounds": compact(compact_rounds(values["round"]))} | ({"lead": compact(lead)} if lead else {})
    for short, name, digits in (*COLUMNS, *held):
        parts[short] = column(values[name], digits)
    parts["probes"] = compact(probes)
    parts |= {"none": compact(none)} if none else {}
    return "{" + ",".join(f'"{name}":{value}' for name, value in parts.items()) + "}"


def led_otherwise(values: dict[str, list[Any]]) -> dict[str, Any] | None:
    """Return what leads in a run if that is not the accuracy, and put it in the accuracy's place in the columns."""
    tables = [t if isinstance(t, dict) else {} for t in values["metrics"]]
    held = [t if isinstance(t, dict) else {} for t in values["validation_metrics"]]
    first = next((t for t in tables if t), None)
    if first is None:
        return None
    own = next((x for x in values["lower"] if isinstance(x, list) and x), [])
    lead, by = (quantity(str(next(iter(t))), own) for t in (first, next((t for t in held if t), first)))
    values["test_accuracy"] = [next(iter(t.values()), None) for t in tables]
    if any(held):
        values["validation_accuracy"] = [next(iter(t.values()), None) for t in held]
    if any(v is not None for v in values["personal_score"]):
        values["personal_accuracy"] = values["personal_score"]
    if lead == ACCURACY and by == ACCURACY:
        return None
    return lead_words(lead, by)


def without_score(values: dict[str, list[Any]]) -> list[int]:
    """Return which rounds, by their place, were evaluated, but have no number that leads: left out, as a round that was
    not evaluated is, they would let a run that diverged end well."""
    tested = zip(values["metrics"], values["test_accuracy"], strict=True)
    return [i for i, (table, score) in enumerate(tested) if (table or score is not None) and number(score) is None]


def lead_words(lead: Quantity, held: Quantity) -> dict[str, Any]:
    """Return what a page needs to know of the metric that leads, and of that on samples held out."""
    words = {"title": text(lead.title, 80), "label": text(lead.label, 80)}
    return {**words, "percent": lead.percent, "higher": lead.higher, "held": held.higher}


def by_row(rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of the rounds by name, from tables that may hold anything."""
    return {name: [row.get(name) for row in rows] for name in NAMES}


def as_written(content: bytes) -> dict[str, list[Any]] | None:
    """Return the same from lines that are exactly as a run writes them, without parsing the rest of each line.

    ``None`` if a line is any other, or the rounds are not 1, 2, 3, ...
    """
    found = LINE.findall(content)
    if not found or len(found) != content.count(b"\n") or not content.endswith(b"\n"):
        return None
    try:
        values = {n: parsed(texts) for n, texts in zip(NAMES, zip(*found, strict=True), strict=True)}
    except ValueError:
        return None
    return values if values["round"] == list(range(1, len(found) + 1)) else None


def parsed(texts: tuple[bytes, ...]) -> list[Any]:
    """Return the values in texts of JSON, nothing for an empty one; ``ValueError`` for any other text."""
    if len(set(texts)) == 1:
        return [json.loads(texts[0] or b"null")] * len(texts)
    values = json.loads(b"[" + b",".join(t or b"null" for t in texts) + b"]")
    if len(values) != len(texts):
        raise ValueError(len(values))
    return values


def column(values: list[Any], digits: int) -> str:
    """Return numbers as JSON; one number where all are the same, as bytes per round are: a third of a large page."""
    if values and values.count(values[0]) == len(values):  # one stands for all
        one = written(values[:1], digits)[0]
        return one if one != NOTHING else f"[{','.join([NOTHING] * len(values))}]"
    texts = written(values, digits)
    return texts[0] if len(set(texts)) == 1 and texts[0] != NOTHING else f"[{','.join(texts)}]"


def written(values: list[Any], digits: int) -> list[str]:
    """Return numbers with so many significant digits as JSON; anything else is nothing.

    >>> written([0.123456789, None, 2.0, "<b>"], 3)
    ['0.123', 'null', '2', 'null']
    """
    form = f"%.{digits}g"
    if {*map(type, values)} == {float}:
        texts = " ".join([form] * len(values)) % tuple(values)  # all at once is quicker
        if "n" not in texts and "e+308" not in texts:  # of inf and nan, and of what fewer digits may make infinite
            return texts.split()
    numbers = [None if v is None else number(v, digits) for v in values]
    return [NOTHING if n is None else form % n for n in numbers]


def compact_rounds(rounds: list[int]) -> int | list[int]:
    """Return only the count where the rounds are 1, 2, 3, ..."""
    return len(rounds) if rounds == list(range(1, len(rounds) + 1)) else rounds


def compact(value: Any) -> str:
    """Return a value as JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)
