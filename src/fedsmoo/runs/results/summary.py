"""What a run comes to in a few numbers: its summary, as the folder keeps it and as others read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from fedsmoo.metrics.average import finite_or_none
from fedsmoo.metrics.quantity import ACCURACY, Quantity, quantity
from fedsmoo.runs.record import (
    Record,
    accuracies_of,
    best_validated,
    count_without_number,
    last_mean,
    last_personal,
    lead_among,
    lead_of,
    say_no_number,
    scores_of,
)
from fedsmoo.runs.traffic import first_reached
from fedsmoo.runs.watch.changes import changes_in

# In a summary, of the best round by validation: which it is, how well it did there, and on the test part.
VALIDATED = {"validated_round": "round", "validation_accuracy": "validation_accuracy"}
VALIDATED |= {"validated_accuracy": "test_accuracy"}


def summarise(history: list[Record], target: float | None) -> dict[str, Any]:
    """Summarise a run: the last round, the mean of the last ten evaluations beside it (of all, if fewer),
    and what was spent."""
    tested = [r for r in history if r.evaluated]
    accuracies = accuracies_of(tested)
    scores = scores_of(tested)
    lacking = {"without_number": count} if (count := count_without_number(scores)) else {}
    hit = first_reached(history, target) if target is not None else None
    chosen = best_validated(history)
    validated = {} if chosen is None else {name: getattr(chosen, n) for name, n in VALIDATED.items()}
    changes = [list(change) for change in changes_in(history)]
    return {
        "rounds": len(history),
        "test_accuracy": finite_or_none(accuracies[-1]) if accuracies else None,
        "evaluations": len(tested),
        "test_accuracy_last10": finite_or_none(last_mean(accuracies)),
        **lacking,  # of the last ten evaluations those in which what leads has no value
        "best_accuracy": ACCURACY.best(accuracies),  # a maximum over the test set
        **validated,
        **last_personal(history),
        **metric_summary(tested, chosen),
        "test_loss": tested[-1].test_loss if tested else None,
        "bytes_up": sum(r.bytes_up for r in history),
        "bytes_down": sum(r.bytes_down for r in history),
        "seconds_train": sum(r.seconds_train for r in history),
        "seconds_eval": sum(r.seconds_eval for r in history),
        "target": target,
        "target_reached": None if hit is None else asdict(hit) | {"bytes": hit.bytes},
        **({"changes": changes} if changes else {}),
    }


def metric_summary(tested: list[Record], chosen: Record | None) -> dict[str, Any]:
    """Return the further fields of a summary where other metrics were measured; ``chosen``: the best by validation."""
    if not any(r.metrics for r in tested):
        return {}
    lead, scores = lead_of(tested), scores_of(tested)
    out = {
        "metric": lead.name,
        "lower_is_better": not lead.higher,
        "score": finite_or_none(scores[-1]),
        "score_last10": finite_or_none(last_mean(scores)),
        "best_score": lead.best(scores),  # of all rounds, over the test set
        "metrics": tested[-1].metrics,
    }
    if chosen is None:
        return out
    by = lead_among(chosen.validation_metrics, chosen.lower)
    how = {"validation_metric": by.name, "validation_lower_is_better": not by.higher}
    return {**out, **how, "validation_score": chosen.validation, "validated_score": chosen.score}


@dataclass(frozen=True)
class Ending:
    """How well a run ended, from its summary, whichever metric leads."""

    lead: Quantity
    last: float | None
    last_ten: float | None  # mean of the last ten evaluations, or of all if they are fewer
    best: float | None
    validated: float | None  # of the round that was best on the samples held out
    validation: tuple[Quantity, float] | None  # how good that was there
    personal: dict[str, tuple[float, float, float]]  # personal, global -> mean, deviation, worst tenth over clients
    lacking: str = ""  # in words, where what leads has no value in some of the last ten evaluations

    @property
    def served_by(self) -> Quantity:
        """What personal models are measured by."""
        return self.validation[0] if self.validation else self.lead


def read_ending(summary: Mapping[str, Any]) -> Ending:
    """Return how well a run ended, from its summary; older ones have accuracies only."""
    get = summary.get
    other = get("metric") is not None
    lead = metric_named(summary, "metric", "lower_is_better") if other else ACCURACY
    names = ("score", "score_last10", "best_score", "validated_score") if other else ACCURACIES
    by = get("validation_score") if other else get("validation_accuracy")
    held = metric_named(summary, "validation_metric", "validation_lower_is_better") if other else ACCURACY
    people = {}
    for who in ("personal", "global"):
        mean = get(f"{who}_accuracy") if get(f"{who}_accuracy") is not None else get(f"{who}_score")
        spread, worst = get(f"{who}_deviation"), get(f"{who}_worst_tenth")
        if mean is not None and spread is not None and worst is not None:  # one comes with the others
            people[who] = (mean, spread, worst)
    last, last_ten, best, validated = (get(n) for n in names)
    count = get("without_number") or 0
    lacking = say_no_number(count, get("evaluations") or count) if count else ""
    return Ending(lead, last, last_ten, best, validated, None if by is None else (held, by), people, lacking)


ACCURACIES = ("test_accuracy", "test_accuracy_last10", "best_accuracy", "validated_accuracy")


def metric_named(summary: Mapping[str, Any], name: str, lower: str) -> Quantity:
    """Return the metric that a summary names; for a user's own, the summary says whether less is better."""
    found = str(summary.get(name) or ACCURACY.name)
    return quantity(found, [found] if summary.get(lower) else [])
