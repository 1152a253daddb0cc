"""Seconds and memory that ``fedsmoo report`` takes for 500 runs of 800 rounds: at most 6 s and 300 MB are wanted.

    python -m benchmarks.checks.report_speed                    # about half a minute, most of it to make the folders
    python -m benchmarks.checks.report_speed --runs 50 --rounds 100
    python -m benchmarks.checks.report_speed --keep             # adds the outcome to results/report_speed.json

The folders are made without training: five methods, twenty learning rates and five seeds on 100 clients, with numbers
of as many digits as real ones. Measured is the command in a process of its own, of this checkout as it is: the time
that its one thread had the processor, so that other programs hardly matter, and the memory that it held at most. A hash
of the data in the page, without its date, is printed, too: versions that show the same print the same. The exit status
is 1 if it takes longer or more memory than wanted.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.checks.commits import ROOT, add, circumstances, environment, full_name, git, refuse_other_package

OUTCOMES = ROOT / "results" / "report_speed.json"
SECONDS, MEGABYTES = 6.0, 300.0
METHODS = ("fedavg", "scaffold", "fedcm", "feddyn", "fedsmoo")
RATES, SEEDS = 20, 5
DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
CONFIG = """rounds = {rounds}
cohort = 10
batch_size = 50
lr = {lr}
seed = {seed}
algorithm = "{method}"
model = "resnet18_gn"
dataset = "cifar10"
partition = "dirichlet"
u = 0.1
clients = 100
"""


def make_run(folder: Path, k: int, rounds: int) -> None:
    """Write the folder of run number ``k``, as a run would leave it, with numbers drawn at random."""
    chance = random.Random(k)
    seed, rate, method = k % SEEDS, k // SEEDS % RATES, METHODS[k // (SEEDS * RATES) % len(METHODS)]
    (folder / "analysis").mkdir(parents=True)
    (folder / "config.toml").write_text(CONFIG.format(rounds=rounds, lr=(rate + 1) / 100, seed=seed, method=method))
    with (folder / "metrics.jsonl").open("w") as f:
        f.writelines(json.dumps(record(t, chance)) + "\n" for t in range(1, rounds + 1))
    facts = {"rounds": rounds, "engine": "batched", "device": "cuda:0", "parameters": 11_173_962}
    (folder / "summary.json").write_text(json.dumps(facts | {"command": f"fedsmoo run --seed {seed}"}))
    drawn = random.Random(seed)
    counts = [[drawn.randrange(300) for _ in range(10)] for _ in range(100)]
    (folder / "analysis" / "partition.json").write_text(json.dumps({"counts": counts}))


def record(t: int, chance: random.Random) -> dict[str, object]:
    """Return a line of metrics."""
    values = {name: chance.random() for name in ("test_accuracy", "test_loss", "train_loss", "drift")}
    sent = {"bytes_up": 893_916_960, "bytes_down": 893_916_960}
    taken = {"seconds_train": chance.random(), "seconds_eval": chance.random(), "probes": {}}
    cohort = sorted(chance.sample(range(100), 10))
    return {"round": t, **values, "lr": 0.1 * 0.998**t, "cohort": cohort, **sent, **taken, "drift_after": 0.5}


def measure(folder: Path, page: Path) -> tuple[float, float]:
    """Return the seconds and the megabytes at most that the command takes."""
    words = [sys.executable, "-m", "fedsmoo", "report", str(folder), "--out", str(page)]
    child = subprocess.Popen(words, env=environment(ROOT), stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"the command ended with {child.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6


def shown(page: Path) -> str:
    """Return a hash of the data in a page, without when and by which version it was made."""
    found = DATA.search(page.read_text(encoding="utf-8"))
    if found is None:
        raise SystemExit(f"{page} holds no data")
    data = {k: v for k, v in json.loads(found[1]).items() if k != "made"}
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=800)
    parser.add_argument("--repeat", type=int, default=3, help="how often; the quickest counts")
    parser.add_argument("--keep", action="store_true", help=f"add the outcome to {OUTCOMES.relative_to(ROOT)}")
    given = parser.parse_args()
    refuse_other_package(ROOT)
    with tempfile.TemporaryDirectory() as temporary:
        runs, page = Path(temporary) / "runs", Path(temporary) / "report.html"
        for k in range(given.runs):
            make_run(runs / f"{k:04}", k, given.rounds)
        taken = [measure(runs, page) for _ in range(given.repeat)]
        seconds, megabytes = min(t[0] for t in taken), max(t[1] for t in taken)
        size, digest = page.stat().st_size / 1e6, shown(page)
    print(f"{given.runs} runs of {given.rounds} rounds: {seconds:.1f} s, {megabytes:.0f} MB, a page of {size:.1f} MB")
    print(f"its data: {digest}")
    if given.keep:
        commit = {"commit": full_name("HEAD"), "dirty": bool(git("status", "--porcelain", "--", "src"))}
        entry = {**commit, **circumstances(), "runs": given.runs, "rounds": given.rounds}
        found = {"seconds": round(seconds, 2), "megabytes": round(megabytes), "data": digest}
        add(OUTCOMES, entry | found, ("commit", "dirty", "cpu", "runs", "rounds"))
    return int(seconds > SECONDS or megabytes > MEGABYTES)


if __name__ == "__main__":
    sys.exit(main())
