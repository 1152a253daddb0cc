"""``fedsmoo analyse``: measure finished runs; results are kept beside each run, where the report page finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fedsmoo.commands.console import console, table
from fedsmoo.commands.report import found
from fedsmoo.core.errors import FedsmooError
from fedsmoo.experiment.saved import SavedRun, open_run
from fedsmoo.report import measure

app = typer.Typer(help="Measure finished runs: flatness, landscapes, consistency, fairness.", no_args_is_help=True)

Runs = Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold some.", show_default=False)]
Part = Annotated[str, typer.Option(help="Measure on the train or the test part.")]
Samples = Annotated[int | None, typer.Option(help="Only so many samples of it (default: all).", show_default=False)]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Precision = Annotated[str, typer.Option(help="Matrix products on a GPU: fp32, tf32 or bf16.")]
Seed = Annotated[int, typer.Option(help="Seed of subsamples, directions and probes.")]
Radius = Annotated[float, typer.Option(help="Length of the perturbation.")]
Points = Annotated[int, typer.Option(help="Points per axis.")]
Models = Annotated[int, typer.Option(help="Models evaluated at once.")]
Size = Annotated[int, typer.Option(help="Samples in memory at a time.")]


def opened(paths: list[Path], device: str, precision: str) -> list[SavedRun]:
    return [open_run(p, device, precision) for p in found(paths)]


def show(columns: list[str], rows: list[list[str]]) -> None:
    console().print(table("", ["run", *columns], rows))


@app.command("hessian", help="Top eigenvalues, trace and, with --density, the spectrum of the Hessian.")
def hessian(
    runs: Runs,
    part: Part = "train",
    samples: Samples = None,
    top: Annotated[int, typer.Option(help="How many eigenvalues.")] = 1,
    probes: Annotated[int, typer.Option(help="Products for the trace (Hutch++).")] = 30,
    tol: Annotated[float, typer.Option(help="Relative accuracy of eigenvalues.")] = 1e-3,
    density: Annotated[int, typer.Option(help="Lanczos steps for the spectral density; 0: none.")] = 0,
    size: Size = 1000,
    device: Device = "auto",
    precision: Precision = "fp32",
    seed: Seed = 0,
) -> None:
    rows = []
    for run in opened(runs, device, precision):
        loss = measure.loss_of(run, part, samples, seed, size)
        values = measure.measure_hessian(run, loss, top, probes, tol, density, seed)
        measure.keep(run, "hessian", values, loss)
        trace = f"{values['trace']:.5g} ± {values['trace_error']:.2g}"
        seconds = f"{values['seconds_eigenvalues'] + values['seconds_trace']:.1f}"
        rows.append([run.name, f"{values['eigenvalues'][0]:.5g}", trace, f"{loss.samples} ({part})", seconds])
    show(["top eigenvalue", "trace", "samples", "seconds"], rows)


@app.command("landscape", help="Loss and accuracy around a model, in directions that all runs share.")
def landscape(
    runs: Runs,
    points: Points = 51,
    span: Annotated[float, typer.Option(help="How far to go, in lengths of the filters.")] = 1.0,
    part: Part = "test",
    samples: Samples = None,
    models: Models = 32,
    size: Size = 500,
    device: Device = "auto",
    precision: Precision = "fp32",
    seed: Seed = 0,
) -> None:
    rows = []
    for run in opened(runs, device, precision):
        loss = measure.loss_of(run, part, samples, seed, size)
        values = measure.measure_landscape(run, loss, points, span, seed, models)
        centre = values["loss"][points // 2][points // 2]
        if centre is None:
            raise FedsmooError(f"{run.path}: the loss at the model is not finite; has the run diverged?")
        measure.keep(run, "landscape", values, loss)
        corner = max(v for row in values["loss"] for v in row if v is not None)
        rows.append(
            [run.name, f"{centre:.4f}", f"{corner:.4f}", f"{loss.samples} ({part})", f"{values['seconds']:.1f}"]
        )
    show(["loss at the model", "highest loss", "samples", "seconds"], rows)


@app.command("plane", help="Loss on the plane through the models of two or three runs.")
def plane(
    runs: Runs,
    points: Points = 51,
    part: Part = "test",
    samples: Samples = None,
    models: Models = 32,
    size: Size = 500,
    device: Device = "auto",
    precision: Precision = "fp32",
    seed: Seed = 0,
) -> None:
    all_runs = opened(runs, device, precision)
    loss = measure.loss_of(all_runs[0], part, samples, seed, size)
    path = measure.keep(all_runs[0], "plane", measure.measure_plane(all_runs, loss, points, seed, models), loss)
    console().print(str(path), soft_wrap=True, markup=False)


@app.command("line", help="Loss on the straight line between the models of two runs.")
def line(
    one: Path,
    other: Path,
    points: Points = 51,
    part: Part = "test",
    samples: Samples = None,
    size: Size = 500,
    device: Device = "auto",
    precision: Precision = "fp32",
) -> None:
    first, second = (open_run(p, device, precision) for p in (one, other))
    loss = measure.loss_of(first, part, samples, size=size)
    values = measure.measure_line(first, second, loss, points)
    measure.keep(first, "line", values, loss)
    ends = [values["loss"][values["t"].index(t)] for t in (0.0, 0.5, 1.0)]
    show(["loss here", "half-way", "there"], [[f"{first.name} to {second.name}", *(f"{v:.4f}" for v in ends)]])


@app.command("sharpness", help="How much the loss rises within a radius: at worst (SAM) and on average.")
def sharpness(
    runs: Runs,
    radius: Radius = 0.1,
    steps: Annotated[int, typer.Option(help="Steps of the ascent.")] = 20,
    part: Part = "train",
    samples: Samples = None,
    device: Device = "auto",
    precision: Precision = "fp32",
    seed: Seed = 0,
) -> None:
    rows = []
    for run in opened(runs, device, precision):
        loss = measure.loss_of(run, part, samples, seed)
        values = measure.measure_sharpness(run, loss, radius, steps)
        measure.keep(run, "sharpness", values, loss)
        rows.append(
            [run.name, f"{values['sharpness']:.5g}", f"{values['average']:.3g} ± {values['average_error']:.1g}"]
        )
    show([f"sharpness, r = {radius:g}", "average"], rows)


@app.command("bound", help="The terms of the paper's generalisation bound.")
def bound(
    runs: Runs,
    eps: Annotated[float, typer.Option(help="The margin.")] = 0.1,
    radius: Radius = 0.1,
    part: Part = "train",
    samples: Samples = None,
    device: Device = "auto",
) -> None:
    rows = []
    for run in opened(runs, device, "fp32"):
        loss = measure.loss_of(run, part, samples)
        values = measure.measure_bound(run, loss, eps, radius)
        measure.keep(run, "bound", values, loss)
        rows.append([run.name, *(f"{values[k]:.4g}" for k in ("log10_capacity", "margin_error", "log10_bound_term"))])
    show(["log10 capacity", f"margin error, eps = {eps:g}", "log10 bound term"], rows)


@app.command("fairness", help="Accuracy of the global model per class and per client.")
def fairness(runs: Runs, device: Device = "auto") -> None:
    rows = []
    for run in opened(runs, device, "fp32"):
        values = measure.measure_fairness(run)
        measure.keep(run, "fairness", values)
        measure.keep(run, "partition", measure.measure_partition(run))
        rows.append([run.name, *(f"{100 * values[k]:.2f}" for k in ("mean", "worst_tenth", "best_tenth", "deviation"))])
    show(["mean client (%)", "worst tenth", "best tenth", "deviation"], rows)


@app.command(
    "consistency",
    help="Dual gaps of all clients, and perturbations of the first 20 clients met, from the newest checkpoint.",
)
def consistency(
    runs: Runs,
    radius: Annotated[
        float | None,
        typer.Option(help="Length of the perturbation (default: the run's own r).", show_default=False),
    ] = None,
    device: Device = "auto",
) -> None:
    for run in opened(runs, device, "fp32"):
        values = measure.measure_consistency(run, radius)
        if not values:
            said = f"{run.name}: nothing to measure: the clients of {run.config.algorithm} keep no vectors"
            console().print(said, soft_wrap=True, markup=False)
            continue
        measure.keep(run, "consistency", values)
        show(["value"], [[f"{run.name}: {k}", f"{v:.4g}"] for k, v in values.items()])
