"""The tables of docs/distributed.md, docs/flower.md, docs/rivals.md and docs/around.md from results/ranks.json,
federation.json, rivals.json and robust.json; that of docs/models.md from models.json."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from benchmarks.cpu.ranks import largest_share, round_seconds
from benchmarks.gpu import memory as memories
from benchmarks.rivals import cpu as ways
from benchmarks.rivals import gpu

RESULTS = Path(__file__).parents[2] / "results"
LINKS = {"NVLink": 2e11, "100 Gb/s": 1.1e10, "10 Gb/s": 1.1e9}  # bytes a second that a link carries
WEIGHTS = 11_181_642  # of ResNet-18-GN, all of them


def read(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    return "\n".join(lines + ["| " + " | ".join(r) + " |" for r in rows])


def robust() -> str:
    """Accuracy of servers, one a row, under attacks."""
    kept = read("robust.json")
    found, s = kept["accuracy"], kept["settings"]
    rows = [
        [name, *(f"{statistics.mean(v):.1f} ± {statistics.stdev(v):.1f}" for v in by_attack.values())]
        for name, by_attack in found.items()
    ]
    seeds = len(next(iter(found[next(iter(found))].values())))
    note = (
        f"Test accuracy (%), mean of the last ten of {s['rounds']} rounds, mean ± deviation of {seeds} seeds: "
        f"{s['dataset']}, {s['model']}, {kept['attackers']} of {s['clients']} clients attack, {s['cohort']} in a "
        "round. One of ten classes guessed is 10%."
    )
    return table(["server", *("no attack" if a == "off" else a for a in found["fedavg"])], rows) + f"\n\n{note}"


def ranks() -> str:
    """Seconds of a round by clients on a GPU."""
    found = read("ranks.json")["seconds_by_clients"]
    return table(["clients on a GPU", *found], [["seconds a round", *(f"{t:.3f}" for t in found.values())]])


def model() -> str:
    """A round of several ranks, from the pieces of it that were measured."""
    found, rows = read("ranks.json")["seconds_by_clients"], []
    for cohort, clients, wanted in (
        (10, 100, ((2, "NVLink"), (8, "NVLink"), (8, "10 Gb/s"), (64, "100 Gb/s"))),
        (50, 500, ((8, "NVLink"), (64, "100 Gb/s"))),
        (100, 1000, ((8, "NVLink"), (8, "10 Gb/s"), (64, "100 Gb/s"), (64, "10 Gb/s"))),
    ):
        one = round_seconds(found, cohort, clients, 1, 1e9)
        for count, link in wanted:
            many = round_seconds(found, cohort, clients, count, LINKS[link])
            even = round_seconds(found, cohort, clients, count, LINKS[link], stateful=False)
            share = f"{largest_share(cohort, clients, count):.1f}"
            times = [f"{one:.3f}", f"{many:.3f}", f"{one / many:.1f}", f"{one / even:.1f}"]
            rows.append([f"{cohort} of {clients}", str(count), link, share, *times])
    return table(["cohort", "ranks", "link", "s", "one rank, s", "R ranks, s", "gain", "gain if dealt evenly"], rows)


def federation() -> str:
    """A federation of three nodes: bytes, seconds and memory."""
    found = read("federation.json")
    both = [found["exact"], found["int8"]]
    sizes = [4 * WEIGHTS / 1e6, WEIGHTS / 1e6]
    rows = [
        [f"a vector of ResNet-18-GN, all {WEIGHTS / 1e6:.1f} M weights", *(f"{s:.0f} MB" for s in sizes)],
        ["a client sends and receives in a round", *(f"{4 * s:.0f} MB" for s in sizes)],
        [
            "seconds of the first round, with first greetings",
            *(f"{f['seconds_by_round'][0]:.0f}" for f in both),
        ],
        ["seconds of rounds 2 and 3", *(", ".join(f"{s:.0f}" for s in f["seconds_by_round"][1:]) for f in both)],
    ]
    for name, program in (
        ("peak memory: server app", "flwr-serverapp"), ("SuperLink", "flower-superlink"),
        ("client app (one for each message)", "flwr-clientapp"), ("SuperNode", "flower-supernode"), ("gate", "gate"),
    ):  # fmt: skip
        rows.append([name, *(f"{f['peak_MB'][program] / 1000:.2f} GB" for f in both)])
    same = ["the same bits" if f["right_to_the_bit"] else "other bits" for f in both]
    rows.append(["result, against a replay in one process", *same])
    return table(["three nodes, FedSMOO (two vectors each way), TLS, authentication, gate", "exact", "int8"], rows)


def rivals() -> str:
    """Other simulators beside ours."""
    return ways.table(read("rivals.json"))


def own_benchmarks() -> str:
    """Ours on the benchmarks that other simulators ship."""
    return ways.own_tables(read("rivals.json"))


def rivals_gpu() -> str:
    """Other simulators beside ours on a GPU."""
    return gpu.on_gpu(read("gpu/rivals.json"), read("gpu/authors.json"), gpu.rounds())


def memory() -> str:
    """A round of many clients in limited memory."""
    return memories.sentence(read("gpu/memory.json"))


def models() -> str:
    """The models that were tried, with the time of a round against a plain loop of PyTorch clients."""
    return models_table(read("models.json"))


def models_table(report: dict[str, Any]) -> str:
    """What benchmarks/cpu/models.py measured, as a table; models that could not be trained are left out."""
    rows, engines = [], ("serial", "threads", "vmap", "batched")
    for r in (r for r in report["results"] if "fails" not in r):
        seconds = r["seconds_per_round"]
        loop, faster = seconds["plain loop"], {w: seconds["plain loop"] / s for w, s in seconds.items()}
        size = str(r["trained"]) if r["trained"] == r["parameters"] else f"{r['trained']} of {r['parameters']}"
        said = {w: f"{f:.2f}x" if f < 1 else f"{f:.1f}x" for w, f in faster.items()}
        ratios = [f"**{said[w]}**" if w == r["auto"] else said.get(w, "") for w in engines]
        rows.append([r["name"], r["about"], size, f"{1000 * loop:.0f}", *ratios])
    header = ["model", "what it has", "numbers that train", "plain loop, ms", *engines]
    beside = f" beside other work (load {load:.0f})" if (load := report.get("load", 0)) > 1 else ""
    note = (
        f"{report['task']}; the fastest of {report['turns']} rounds, all ways in turn{beside}; "
        f"{report['hardware']}, torch {report['versions']['torch']}. The last four columns: how many times as fast as "
        "the plain loop; bold is what `engine=auto` takes."
    )
    note = f"{note} {report['note']}" if "note" in report else note  # what is special about a measurement
    return table(header, rows) + f"\n\n{note}"


def products() -> str:
    """Products of a CPU by each library and in bf16, and rounds of ``engine=threads`` with each."""
    report = read("products.json")
    ways = list(report["products"][0]["gigaflops"])

    def cells(values: dict[str, float], unit: float, digits: int) -> list[str]:
        return [f"{unit * values[way]:.{digits}f}" for way in ways]

    rows = [
        ["linear layer, {} x {} to {}: GFLOP/s of a core".format(*p["shape"]), *cells(p["gigaflops"], 1, 0)]
        for p in report["products"]
    ]
    rows += [
        [f"{r['model']}, batches of {r['batch']}: ms a round", *cells(r["seconds"], 1e3, 0)] for r in report["rounds"]
    ]
    header = ["", *({"MKL": "float32, MKL", "oneDNN": "float32, oneDNN"}.get(way, way) for way in ways)]
    note = (
        f"10 of 20 clients, 5 steps; the fastest of {report['turns']} rounds, all ways in turn; {report['hardware']}, "
        f"torch {report['versions']['torch']}, commit {report['commit'][:10]} (`benchmarks/cpu/products.py`)."
    )
    return table(header, rows) + f"\n\n{note}"


def busy() -> str:
    """A round by one thread and by one for each core, beside other programs."""
    report = read("busy.json")
    cores = str(report["cores"])
    rows = []
    for row in report["results"]:
        one, all_ = (1000 * row["seconds_by_threads"][threads] for threads in ("1", cores))
        rows.append([f"`{row['model']}`", str(row["others"]), f"{one:.1f}", f"{all_:.1f}", f"{all_ / one:.1f}x"])
    note = (
        f"Milliseconds: {report['task']}; {report['hardware']}, torch {report['versions']['torch']}, commit "
        f"{report['commit'][:10]} (`benchmarks/cpu/busy.py`)."
    )
    header = ["model", "other programs", "one thread", f"{cores} threads", "how many times one thread's"]
    return table(header, rows) + f"\n\n{note}"


BLOCKS = (products, busy, ranks, model, federation, rivals, own_benchmarks, rivals_gpu, memory, robust, models)
