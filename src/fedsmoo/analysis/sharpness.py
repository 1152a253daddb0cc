"""Measure sharpness: how much the loss can rise, and rises on average, within a radius of a model."""

from __future__ import annotations

from dataclasses import dataclass

from fedsmoo.analysis.measurement import Moment, OnSamples, Subject, Values, refuse_not_positive
from fedsmoo.core.hyper.options import option


@dataclass(frozen=True)
class SharpnessMeasurement(OnSamples):
    """Worst-case and average-case rise of the loss within a radius."""

    name = "sharpness"
    help = "How much the loss rises within a radius: at worst (SAM) and on average."
    columns = ("sharpness", "average", "radius")

    radius: float = option(0.1, "length of the perturbation")
    steps: int = option(20, "steps of the ascent", within="(0, inf)")
    draws: int = option(32, "random perturbations in the average", within="(1, inf)")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.sharpness import average_case, worst_case

        refuse_not_positive("the radius", self.radius)
        loss = self.loss(run)
        average, error = average_case(loss, run.w, self.radius, self.draws)
        worst = worst_case(loss, run.w, self.radius, self.steps).value
        found = {"sharpness": worst, "average": average, "average_error": error, "radius": self.radius}
        return {**found, **self.about(loss)}

    def rows(self, name: str, values: Values) -> list[list[str]]:
        average = f"{values['average']:.3g} ± {values['average_error']:.1g}"
        return [[name, f"{values['sharpness']:.5g}", average, f"{values['radius']:g}"]]

    @classmethod
    def probe(cls, now: Moment) -> dict[str, float]:
        """Measure SAM's sharpness by a short ascent."""
        from fedsmoo.analysis.functions.sharpness import worst_case

        return {"sharpness": worst_case(now.loss, now.server.w, cls.radius, steps=3, starts=1).value}
