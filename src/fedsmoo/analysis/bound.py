"""Measure the terms of the paper's generalisation bound."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from fedsmoo.analysis.measurement import OnSamples, Subject, Values, refuse_not_positive
from fedsmoo.core.hyper.options import option


@dataclass(frozen=True)
class BoundMeasurement(OnSamples):
    """The capacity term, the margin error at the perturbed model, and the bound's second term."""

    name = "bound"
    help = "The terms of the paper's generalisation bound."
    columns = ("log10 capacity", "margin error", "log10 bound term", "eps")

    eps: float = option(0.1, "the margin")
    radius: float = option(0.1, "length of the perturbation")
    p: float = option(0.05, "the bound holds with probability 1 - p", within="(0, 1)")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions import bound

        refuse_not_positive("the radius", self.radius)
        refuse_not_positive("eps", self.eps)
        loss, module = self.loss(run), run.task.model.export(run.w)
        layers = bound.weight_layers(module, next(loss.batches())[0])
        input_norm = max(x.flatten(1).norm(dim=1).max().item() for x, _ in loss.batches())
        s = bound.sam_perturbation(loss, run.w, self.radius)
        term = bound.bound_term(layers, loss.samples, input_norm, self.eps, self.p)
        return {
            "log10_capacity": bound.log_capacity(layers) / math.log(10),
            "margin_error": bound.margin_error(loss, run.w, s, self.eps),
            "log10_bound_term": term / math.log(10),
            "eps": self.eps,
            "radius": self.radius,
            "p": self.p,
            "layers": [asdict(layer) for layer in layers],
            **self.about(loss),
        }

    def rows(self, name: str, values: Values) -> list[list[str]]:
        shown = ("log10_capacity", "margin_error", "log10_bound_term", "eps")
        return [[name, *(f"{values[k]:.4g}" for k in shown)]]
