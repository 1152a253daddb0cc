"""Files of measured results on a page, beside run folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedsmoo.core.untrusted import number, text
from fedsmoo.pages.figures.sources import read_table, result
from fedsmoo.pages.gather import COMMANDS, LONGEST, SUMMARY_NUMBERS, SUMMARY_TEXTS, candidates
from fedsmoo.pages.groups import add_groups
from fedsmoo.pages.metrics import COLUMNS, compact
from fedsmoo.pages.standing import may_be_of_it, standing

CURVES = ("rounds", "lead", *(short for short, _, _ in COLUMNS))


def with_results(data: dict[str, Any], folders: Sequence[Path], files: Sequence[Path]) -> dict[str, Any]:
    """Return a page's data of run folders with the runs of result files after them."""
    more = [as_run(path) for path in files]
    places = tuple(path for path, run in zip(files, more, strict=True) if may_be_of_it(run))
    known = standing(candidates(folders, data["runs"]), places)
    return {**data, "runs": add_groups([*data["runs"], *more]), "standing": known}


def as_run(path: Path) -> dict[str, Any]:
    """Return the run of a result file as the page needs it."""
    facts = read_table(path)
    run = result(path, facts)
    texts = {k: text(facts[k], LONGEST if k in COMMANDS else 200) for k in (*SUMMARY_TEXTS, *COMMANDS) if k in facts}
    return {
        **{k: v for k, v in run.items() if k not in (*CURVES, "file")},
        "curves": compact({**{k: run[k] for k in CURVES if k in run}, "probes": {}}),
        "state": "finished",
        "summary": {**{k: number(facts.get(k)) for k in SUMMARY_NUMBERS}, **texts},
        "partition": None,
        "skipped": [],
    }
