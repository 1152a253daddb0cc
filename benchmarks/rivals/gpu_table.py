"""Rivals on a GPU as a table in Markdown."""

from __future__ import annotations

from typing import Any

WORK = {
    "paper": "the paper's round: ResNet-18-GN, 10 clients, 50 steps of 50",
    "pfl": "pfl-research's CIFAR-10 benchmark: 50 users, a CNN with dropout, 5 steps of 10",
    "blazefl": "BlazeFL's CIFAR-10 benchmark, a tenth of its clients: 10 of them, a small CNN, 50 steps of 50",
    "fedjax": "FedJAX's EMNIST example with drawn images: 10 of 100 clients of 200, a CNN with dropout, 10 steps of 20",
}
SET_UPS = ("FedJAX", "DrJAX")  # rivals that were tried in several ways, which follow their names; the fastest counts


def on_gpu(report: dict[str, Any], authors: dict[str, Any], rounds: dict[str, Any]) -> str:
    """Ways by workload, each beside ours in the same precision and in bf16.

    What was not measured with the others is taken from measurements of the paper's round on the same GPU: the authors'
    simulator, and ours (``rounds``, by precision). Of FedJAX and DrJAX the fastest way to set them up is shown.
    """
    lines = [
        "| work | way | precision | seconds a round | ours, same precision | ours, bf16 | accuracy | loss |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    ]
    for task, about in WORK.items():
        rows = [r for r in shown(report["rows"]) if r["task"] == task]
        for r in rows if task == "paper" else ():
            before = rounds.get(r["precision"])
            if r["way"] == "fedsmoo" and "not_run" in r and before and before["hardware"] == report["hardware"]:
                del r["not_run"]
                r |= {"way": "fedsmoo, measured before", "seconds_per_round": before["seconds_per_round"]}
        ours = {r["precision"]: r["seconds_per_round"] for r in rows if "fedsmoo" in r["way"] and "not_run" not in r}
        if task == "paper" and authors["hardware"] == report["hardware"]:
            theirs = next(r for r in authors["results"] if r["algorithm"] == "fedavg")
            rows.append({
                "way": "the authors' simulator, measured before", "precision": "tf32",
                "seconds_per_round": theirs["seconds_per_round"],
            })  # fmt: skip
        for r in sorted(rows, key=lambda r: r.get("seconds_per_round", 1e9)):
            lines.append(f"| {about} | {' | '.join(cells(r, ours))} |")
            about = ""
    note = (
        f"FedAvg, training alone, the fastest timed round; {report['hardware']}, torch {report['versions']['torch']}, "
        f"commit {report['code']['commit'][:10]}{later(report)}. Images are drawn, a pattern for each class in noise; "
        "accuracy and loss are those after the same number of rounds from the same weights."
    )
    return "\n".join([*lines, "", f"{note} {report['note']}" if "note" in report else note])


def shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without those of a rival that another way to set it up leaves behind."""

    def rival(r: dict[str, Any]) -> tuple[str, str, str]:
        return r["task"], r["way"].partition(",")[0], r["precision"]

    best: dict[tuple[str, str, str], dict[str, Any]] = {}
    for r in sorted(rows, key=lambda r: r.get("seconds_per_round", 1e9)):
        best.setdefault(rival(r), r)
    return [r for r in rows if rival(r)[1] not in SET_UPS or best[rival(r)] is r]


def later(report: dict[str, Any]) -> str:
    """Say which of the rows that are shown were measured at other commits, and with which releases."""
    rows, first, found = shown(report["rows"]), report["code"]["commit"], dict[str, list[dict[str, Any]]]()
    for r in rows:
        if (commit := r.get("code", report["code"])["commit"]) != first:
            found.setdefault(commit, []).append(r)
    said = ""
    for commit, new in found.items():
        parts, known = [], {("torch", report["versions"]["torch"])}
        for task in dict.fromkeys(r["task"] for r in new):
            whole = all(r in new for r in rows if r["task"] == task)
            ways = dict.fromkeys(r["way"].partition(",")[0] for r in new if r["task"] == task)
            parts.append(f"{'all ways' if whole else ' and '.join(ways)} on {WORK[task].partition(':')[0]}")
        releases = {v for r in new for v in r.get("versions", {}).items()} - known
        parts += [", ".join(f"{name} {version}" for name, version in sorted(releases))] if releases else []
        said += f"; commit {commit[:10]} ({'; '.join(parts)})"
    return said


def cells(r: dict[str, Any], ours: dict[str, float]) -> list[str]:
    if "not_run" in r:
        return [r["way"], r["precision"], f"not run: {r['not_run']}", "", "", "", ""]
    seconds = r["seconds_per_round"]
    ratios = [f"{seconds / ours[p]:.1f}x" if p in ours else "" for p in (r["precision"], "bf16")]
    scores = [f"{100 * r['test_accuracy']:.0f}%", f"{r['test_loss']:.2f}"] if "test_loss" in r else ["", ""]
    return [r["way"], r["precision"], f"{seconds:.3f}", *ratios, *scores]
