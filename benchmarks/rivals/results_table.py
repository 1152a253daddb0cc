"""The results of rivals as tables in Markdown."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

END = "<!-- /gpu -->"


def summary(setup: str, runs: list[dict[str, Any]], warm_up: int) -> dict[str, Any]:
    """Return what the turns of one way came to."""
    timed = [r["seconds_per_round"][warm_up:] for r in runs]
    every = [s for t in timed for s in t]
    low, middle, high = statistics.quantiles(every, n=4) if len(every) > 1 else every * 3
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
        "engine": runs[-1].get("engine"),
        "busy_cores_before": [r["busy_cores_before"] for r in runs],
        "load_average_after": [r["load_average_after"] for r in runs],
        "rounds": timed,
    }


def accuracy_of(r: dict[str, Any]) -> str:
    spread = f" ± {100 * statistics.stdev(r['test_accuracy']):.1f}" if len(r["test_accuracy"]) > 1 else ""
    return f"{100 * statistics.mean(r['test_accuracy']):.1f}%{spread}"


def against(r: dict[str, Any], results: dict[str, Any]) -> str:
    """How many times ours a way takes, by the fastest turn of each."""
    ours = next(iter(results.values()))
    return f"{r['fastest_turn'] / ours['fastest_turn']:.1f}x" if "fastest_turn" in ours else ""


def table(report: dict[str, Any]) -> str:
    """The workload that all run, as Markdown."""
    results = report["results"]
    lines = [
        "| way | set up as | a round: fastest turn | times ours | all turns: median (quartiles) | accuracy | memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, r in results.items():
        if "not_run" in r:
            lines.append(f"| {name} | not run: {r['not_run']} | | | | | |")
            continue
        low, middle, high = (1e3 * q for q in (r["quartiles"][0], r["seconds_per_round"], r["quartiles"][1]))
        memory = f"{r['memory_bytes'] / 2**20:.0f} MiB" if r["memory_bytes"] else ""
        cells = [
            name, r["setup"], f"{1e3 * r['fastest_turn']:.1f} ms", against(r, results),
            f"{middle:.1f} ms ({low:.1f}-{high:.1f})", accuracy_of(r), memory,
        ]  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", machine_line(report)])


def machine_line(report: dict[str, Any]) -> str:
    versions = {p: v for r in report["results"].values() for p, v in r.get("versions", {}).items()}
    busy = [b for r in report["results"].values() for b in r.get("busy_cores_before", [])]
    words = ", ".join(f"{p} {v}" for p, v in sorted(versions.items()))
    machine = report["hardware"]
    shared = f"others used {min(busy):.1f} to {max(busy):.1f} cores as a turn began" if busy else ""
    turns = f"{report['turns']} turn{'s' * (report['turns'] > 1)} of {report['settings']['rounds']} timed rounds"
    return (
        f"{machine['cpu']}, {machine['cores']} cores ({shared}); fedsmoo {report['fedsmoo']}, {words}, Python "
        f"{report['python']}; {turns}."
    )


def own_tables(report: dict[str, Any]) -> str:
    """The benchmarks that rivals ship, one after the other in one table."""
    if not report.get("own"):
        return "This measurement has none of them."
    lines = [
        "| benchmark | way | set up as | seconds a round | times ours | accuracy |",
        "|---|---|---|---:|---:|---:|",
    ]
    for found in report.get("own", {}).values():
        about = found["about"]
        for name, r in found["results"].items():
            if "not_run" in r:
                lines.append(f"| {about} | {name} | not run: {r['not_run']} | | | |")
            else:
                setup = f"takes `{r['engine']}`" if r.get("engine") else r["setup"]
                cells = [about, name, setup, f"{r['fastest_turn']:.2f}", against(r, found["results"]), accuracy_of(r)]
                lines.append(f"| {' | '.join(cells)} |")
            about = ""
    revisions = ", ".join(f"{n} {r[:7]}" for n, r in report.get("revisions", {}).items())
    note = f"The same machine, one turn; images are {report.get('images', 'drawn')}; checkouts: {revisions or 'none'}."
    return "\n".join([*lines, "", note])


def write_docs(path: Path, report: dict[str, Any]) -> None:
    """Put the tables into a page, in place of those that are there."""
    text = path.read_text()
    for begin, made in (("<!-- gpu:rivals -->", table(report)), ("<!-- gpu:own_benchmarks -->", own_tables(report))):
        if begin in text:
            before, _, rest = text.partition(begin)
            text = f"{before}{begin}\n{made}\n{END}{rest.partition(END)[2]}"
    path.write_text(text)
