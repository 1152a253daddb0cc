"""Measure curvature: the largest eigenvalues, the trace and the spectral density of the loss's Hessian."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fedsmoo.analysis.measurement import Moment, OnSamples, Subject, Values
from fedsmoo.core.hyper.options import option
from fedsmoo.core.untrusted import number, numbers, text

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class HessianMeasurement(OnSamples):
    """The Hessian's largest eigenvalues, its trace and, if asked for, its spectral density."""

    name = "hessian"
    help = "Top eigenvalues, trace and, with --density, the spectrum of the Hessian."
    columns = ("top eigenvalue", "trace", "samples", "seconds")

    top: int = option(1, "how many eigenvalues", within="(0, inf)")
    probes: int = option(30, "products for the trace (Hutch++)", within="(0, inf)")
    tol: float = option(1e-3, "relative accuracy of eigenvalues", within="(0, inf)")
    density: int = option(0, "Lanczos steps for the spectral density; 0: none", within="[0, inf)")

    def measure(self, run: Subject, *others: Subject) -> Values:
        from fedsmoo.analysis.functions.hessian import density, top_eigenvalues, trace

        loss, w = self.loss(run), run.w

        def products(v: Tensor) -> Tensor:
            return loss.products(w, v)

        began = time.perf_counter()
        values, _, taken = top_eigenvalues(products, w, self.top, self.tol, seed=self.seed)
        found = time.perf_counter()
        estimate = trace(products, w, self.probes, self.seed)
        out: Values = {
            "eigenvalues": values.tolist(),
            "trace": estimate.value,
            "trace_error": estimate.error,
            "trace_method": "hutch++",
            "products": taken + estimate.products,
            "tolerance": self.tol,
            "seconds_eigenvalues": found - began,
            "seconds_trace": time.perf_counter() - found,
            **self.about(loss),
        }
        if self.density:
            spectrum = density(products, w, self.density, seed=self.seed)
            out["density"] = {"grid": spectrum.grid.tolist(), "values": spectrum.values.tolist()}
        return out

    def rows(self, name: str, values: Values) -> list[list[str]]:
        estimate = f"{values['trace']:.5g} ± {values['trace_error']:.2g}"
        seconds = values["seconds_eigenvalues"] + values["seconds_trace"]
        return [[name, f"{values['eigenvalues'][0]:.5g}", estimate, self.measured_on(values), f"{seconds:.1f}"]]

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Values | None:
        spectrum = values.get("density")
        return {
            "eigenvalues": numbers(values.get("eigenvalues"))[:50],
            "trace": number(values.get("trace")),
            "trace_error": number(values.get("trace_error"), 3),
            "samples": number(values.get("samples")),
            "part": text(values.get("part", ""), 40),
            "grid": numbers(spectrum.get("grid"), 5)[:2000] if isinstance(spectrum, dict) else [],
            "density": numbers(spectrum.get("values"), 4)[:2000] if isinstance(spectrum, dict) else [],
        }

    @classmethod
    def probe(cls, now: Moment) -> dict[str, float]:
        """Measure the largest eigenvalue to some per cent, and the trace."""
        from fedsmoo.analysis.functions.hessian import top_eigenvalues, trace

        loss, w = now.loss, now.server.w

        def products(v: Tensor) -> Tensor:
            return loss.products(w, v)

        values, _, _ = top_eigenvalues(products, w, tol=0.03)
        return {"hessian_top": float(values[0]), "hessian_trace": trace(products, w, probes=12).value}
