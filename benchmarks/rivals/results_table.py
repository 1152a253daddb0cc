"""The results of rivals as a table in Markdown."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- gpu:rivals -->", "<!-- /gpu -->"


def summary(setup: str, runs: list[dict[str, Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """Return what the turns of one way came to."""
    timed = [r["seconds_per_round"][settings["warm_up"] :] for r in runs]
    every = [s for t in timed for s in t]
    low, middle, high = statistics.quantiles(every, n=4)
    return {
        "setup": setup,
        "seconds_per_round": middle,
        "quartiles": [low, high],
        "fastest_round": min(every),
        # What others do on the machine costs a way that needs both cores more than one that needs one of them.
        "fastest_turn": min(statistics.median(t) for t in timed),
        "test_accuracy": [r["test_accuracy"] for r in runs],
        "memory_bytes": runs[-1]["memory_bytes"],
        "versions": runs[-1]["versions"],
        "busy_cores_before": [r["busy_cores_before"] for r in runs],
        "load_average_after": [r["load_average_after"] for r in runs],
        "rounds": timed,
    }


def table(report: dict[str, Any]) -> str:
    """The results as Markdown."""
    ours = report["results"].get("fedsmoo, batched engine", {})
    lines = [
        "| way | set up as | a round: fastest turn | times ours | all turns: median (quartiles) | accuracy | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in report["results"].items():
        if "not_run" in r:
            lines.append(f"| {name} | not run: {r['not_run']} | | | | | |")
            continue
        low, high = (1e3 * q for q in r["quartiles"])
        best = 1e3 * r["fastest_turn"]
        times = f"{r['fastest_turn'] / ours['fastest_turn']:.1f}x" if "fastest_turn" in ours else ""
        accuracy = f"{100 * statistics.mean(r['test_accuracy']):.1f}%"
        if len(r["test_accuracy"]) > 1:
            accuracy += f" ± {100 * statistics.stdev(r['test_accuracy']):.1f}"
        memory = f"{r['memory_bytes'] / 2**20:.0f} MiB" if r["memory_bytes"] else ""
        middle = 1e3 * r["seconds_per_round"]
        spread = f"{middle:.1f} ms ({low:.1f}-{high:.1f})"
        lines.append(f"| {name} | {r['setup']} | {best:.1f} ms | {times} | {spread} | {accuracy} | {memory} |")
    versions = {p: v for r in report["results"].values() for p, v in r.get("versions", {}).items()}
    busy = [b for r in report["results"].values() for b in r.get("busy_cores_before", [])]
    words = ", ".join(f"{p} {v}" for p, v in sorted(versions.items()))
    machine = report["hardware"]
    shared = f"others used {min(busy):.1f} to {max(busy):.1f} cores as a turn began" if busy else ""
    lines += [
        "",
        f"{machine['cpu']}, {machine['cores']} cores ({shared}); fedsmoo {report['fedsmoo']}, {words}, Python "
        f"{report['python']}; {report['turns']} turns of {report['settings']['rounds']} timed rounds.",
    ]
    return "\n".join(lines)


def write_docs(path: Path, report: dict[str, Any]) -> None:
    """Put the table into a page, in place of the one that is there."""
    before, _, rest = path.read_text().partition(BEGIN)
    path.write_text(f"{before}{BEGIN}\n{table(report)}\n{END}{rest.partition(END)[2]}")
