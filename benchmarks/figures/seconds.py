"""Draws docs/figures/seconds.svg, the README's figure: accuracy over seconds, ours and a loop over clients.

The accuracies are those of FedSMOO's runs on CIFAR-10 (Dirichlet 0.1, 10 of 100 clients, seed 0) in results/. A round's
seconds are those measured on one GPU: ours in results/gpu/round.json and round_tf32.json, and those of the authors'
released simulator, which trains one client after the other, in results/gpu/authors.json.

PYTHONPATH=src python -m benchmarks.figures.seconds [--check]    # --check: fail if it is out of date
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RESULTS, FIGURE = ROOT / "results", ROOT / "docs" / "figures" / "seconds.svg"
RUN = "fedsmoo-cifar10-dirichlet-0.1-10of100-resnet18_gn-seed0-*.json"
WIDTH, HEIGHT = 660, 420
LEFT, RIGHT, TOP, BOTTOM = 52, 22, 104, 58
SHORTEST, LONGEST, HIGHEST = 0.7, 30_000.0, 88.0  # seconds, seconds, per cent
TICKS = {1: "1 s", 10: "10 s", 60: "1 min", 600: "10 min", 3600: "1 h", 4 * 3600: "4 h"}
NEAR = 90  # between the ends of two lines, below which their words would meet
WINDOW = 10  # rounds that a point of a curve is the mean of


@dataclass(frozen=True)
class Line:
    """A curve: what it is called, its colour, and its accuracies over seconds of training."""

    name: str
    colour: str
    seconds: list[float]
    accuracies: list[float]


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def seconds_of_a_round(file: str) -> float:
    """Seconds of a round of FedSMOO in a file of benchmarks."""
    found = read(RESULTS / "gpu" / file)
    entries = found if isinstance(found, list) else found["results"]
    return next(e["seconds_per_round"] for e in entries if e["algorithm"] == "fedsmoo")


def accuracies(precision: str) -> list[float]:
    """Test accuracies of the run in a precision, in per cent, a mean for each window of rounds."""
    runs = [read(path) for place in (RESULTS, RESULTS / "precision") for path in place.glob(RUN)]
    (run,) = [r for r in runs if r["config"]["precision"] == precision]
    each = [100 * a for a in run["curve"]["test_accuracy"]]
    return [sum(each[k : k + WINDOW]) / WINDOW for k in range(0, len(each), WINDOW)]


def lines() -> list[Line]:
    """The three curves, the quickest first; the authors' code computes in tf32, so it has the accuracies of that."""
    made = []
    for name, colour, file, precision in (
        ("fedsmoo, bf16", "ours", "round.json", "bf16"),
        ("fedsmoo, tf32", "alike", "round_tf32.json", "tf32"),
        ("authors' loop over clients, tf32", "loop", "authors.json", "tf32"),
    ):
        y, each = accuracies(precision), seconds_of_a_round(file)
        made.append(Line(name, colour, [each * WINDOW * (k + 1) for k in range(len(y))], y))
    return made


def across(seconds: float) -> float:
    """Where a time lies in the picture."""
    share = math.log(seconds / SHORTEST) / math.log(LONGEST / SHORTEST)
    return LEFT + (WIDTH - LEFT - RIGHT) * share


def up(accuracy: float) -> float:
    """Where an accuracy lies in the picture."""
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * accuracy / HIGHEST


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(75.8), duration(251.2), duration(14283.3)
    ('76 s', '4.2 min', '4.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def axes() -> list[str]:
    out = []
    for accuracy in range(0, 81, 20):
        y = up(accuracy)
        out.append(f'<path class="fs-grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        out.append(f'<text class="fs-tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{accuracy}%</text>')
    for seconds, label in TICKS.items():
        x = across(seconds)
        out.append(f'<path class="fs-grid" d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}"/>')
        out.append(f'<text class="fs-tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{label}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    name = "time of training, one H200"
    out.append(f'<text class="fs-axis" x="{middle:.0f}" y="{HEIGHT - 10}" text-anchor="middle">{name}</text>')
    return out


def anchors(drawn: list[Line]) -> list[str]:
    """How the words at the ends of lines lie there: away from a neighbour's, where that is near."""
    ends = [across(line.seconds[-1]) for line in drawn]
    near = [[other - x for other in ends if 0 < abs(other - x) < NEAR] for x in ends]
    return ["middle" if not gaps else "end" if gaps[0] > 0 else "start" for gaps in near]


def curve(line: Line, anchor: str) -> list[str]:
    """A line, a dot where its 800 rounds end, and how long they took."""
    points = [f"{across(s):.1f} {up(a):.1f}" for s, a in zip(line.seconds, line.accuracies, strict=True)]
    x, y = points[-1].split()
    dash = ' stroke-dasharray="6 4"' if line.colour == "loop" else ""
    return [
        f'<path class="fs-line" stroke="var(--fs-{line.colour})"{dash} d="M{"L".join(points)}"/>',
        f'<circle cx="{x}" cy="{y}" r="4.5" fill="var(--fs-{line.colour})"/>',
        f'<text class="fs-end" x="{x}" y="{float(y) - 12:.1f}" text-anchor="{anchor}" fill="var(--fs-{line.colour})">'
        f"{duration(line.seconds[-1])}</text>",
    ]


def legend(drawn: list[Line]) -> list[str]:
    out, x = [], LEFT
    for line in drawn:
        dash = ' stroke-dasharray="6 4"' if line.colour == "loop" else ""
        out.append(f'<path class="fs-line" stroke="var(--fs-{line.colour})"{dash} d="M{x} 70h24"/>')
        out.append(f'<text class="fs-tick" x="{x + 30}" y="75">{line.name}</text>')
        x += 50 + round(7.4 * len(line.name))
    return out


def figure() -> str:
    """The figure as SVG, in colours for light and for dark pages."""
    drawn = lines()
    rounds = WINDOW * len(drawn[0].accuracies)
    title, more = "Test accuracy of FedSMOO on CIFAR-10", f"the same {rounds} rounds, at each program's speed"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img"',
        f' aria-label="{title}: {more}">',
        STYLE.strip(),
        f'<text class="fs-title" x="{LEFT}" y="22">{title}</text>',
        f'<text class="fs-tick" x="{LEFT}" y="45">{more}</text>',
        *legend(drawn),
        *axes(),
        *(part for line, anchor in zip(drawn, anchors(drawn), strict=True) for part in curve(line, anchor)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


STYLE = """
<style>
svg { --fs-ink: #1f2937; --fs-soft: #6b7280; --fs-grid: #e5e7eb; --fs-ours: #0f766e; --fs-alike: #0ea5e9; --fs-loop: #c2410c; }
@media (prefers-color-scheme: dark) { svg { --fs-ink: #e5e7eb; --fs-soft: #9ca3af; --fs-grid: #374151; --fs-ours: #2dd4bf; --fs-alike: #7dd3fc; --fs-loop: #fb923c; } }
text.fs-title, text.fs-tick, text.fs-axis, text.fs-end { font-family: system-ui, -apple-system, "Segoe UI", Helvetica, Arial, sans-serif; }
.fs-title { font-size: 19px; font-weight: 600; fill: var(--fs-ink); }
.fs-tick { font-size: 14px; fill: var(--fs-soft); }
.fs-axis { font-size: 14.5px; fill: var(--fs-soft); }
.fs-end { font-size: 18px; font-weight: 600; }
.fs-grid { stroke: var(--fs-grid); stroke-width: 1; fill: none; }
.fs-line { stroke-width: 2.6; fill: none; stroke-linejoin: round; }
</style>
"""  # noqa: E501


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing, fail if the figure is out of date")
    made, old = figure(), FIGURE.read_text() if FIGURE.exists() else ""
    if parser.parse_args().check:
        sys.exit(f"{FIGURE.relative_to(ROOT)} is out of date: run benchmarks/figures/seconds.py" if made != old else 0)
    FIGURE.write_text(made)


if __name__ == "__main__":
    main()
