"""What ``benchmarks/checks/hashes.py`` runs: small runs that together use every way in which a run can be computed.

Everything here goes through what users call, so that it works at any commit. ``{python}`` is the interpreter and
``{source}`` the checkout in question; a command that begins with ``STOP`` is stopped in the middle, as by Ctrl-C.
"""

from __future__ import annotations

from dataclasses import dataclass

STOP = "stop"


@dataclass(frozen=True)
class Configuration:
    """Some commands, and how many finished runs they leave below their folder."""

    what: str
    commands: tuple[tuple[str, ...], ...]
    runs: int = 1


# What lies in the folder of every configuration.
FILES = {
    "own.py": '''"""FedDecay: FedAvg whose gradients fade with the distance from the global model (made up, 2026)."""
from dataclasses import dataclass
from fedsmoo import FedAvg, norm, option

@dataclass(frozen=True)
class FedDecay(FedAvg):
    """Local gradients are scaled down as the local model moves away.

    client   w_i <- w_i - lr g(w_i) / (1 + a ||w_i - w||)
    server   as FedAvg
    """

    a: float = option(1.0, "how fast gradients fade")

    def direction(self, w, grad, down, me):
        return grad(w) / (1 + self.a * norm(w - down.w)), me
''',
    "net.py": """from torch import nn

def net(width=12):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))

def noisy():
    return nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(64, 10))
""",
    "play.txt": "".join(f"{who}:\n{12 * 'to be or not to be '}{who}.\n\n" for who in 4 * ("ANNA", "BEN", "CARL")),
    "grid.toml": """model = "mlp"
rounds = 3
local_steps = 3
batch_size = 10
clients = 8
cohort = 4
engine = "batched"
seed = [0, 1, 2]
[methods.SCAFFOLD]
[methods.FedSMOO]
r = 0.05
""",
    "simulate.py": """import json
from pathlib import Path
from safetensors.torch import save_file
import torch
import fedsmoo
from net import net

torch.manual_seed(0)
result = fedsmoo.simulate(net(8), "digits", fedsmoo.FedSMOO(r=0.1, beta=5.0), clients=10, cohort=4, rounds=3,
                          partition="pathological-3", local_steps=3, batch_size=10, lr=0.1, seed=4, engine="vmap",
                          device="cpu")
Path("out").mkdir()
save_file({n: v.contiguous() for n, v in result.model.state_dict().items()}, "out/model.safetensors")
rows = [{k: v for k, v in row.items() if v == v} for row in result.frame.to_dict("records")]
Path("out/metrics.jsonl").write_text("".join(json.dumps(row) + "\\n" for row in rows))
""",
}

FEDSMOO = ("{python}", "-m", "fedsmoo")
RANKS = ("{python}", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "fedsmoo")
SMALL = "--model mlp --clients 10 --cohort 4 --rounds 3 --local-steps 4 --batch-size 10 --device cpu"


def run(what: str, settings: str, start: tuple[str, ...] = FEDSMOO) -> Configuration:
    """Make a small ``fedsmoo run`` with some settings."""
    return Configuration(what, ((*start, "run", *small(settings), "--out", "out"),))


def small(settings: str) -> list[str]:
    """Return the settings of a small run, and these, which win: a command refuses one that is given twice."""
    words = settings.split()
    usual = SMALL.split()
    pairs = zip(usual[::2], usual[1::2], strict=True)
    return [word for pair in pairs if pair[0] not in words for word in pair] + words


CONFIGURATIONS = {
    "fedavg": run("FedAvg, serial, weighted", "--algorithm fedavg --engine serial --weighted true"),
    "scaffold": run(
        "SCAFFOLD, batched, Bernoulli cohorts", "--algorithm scaffold --engine batched --sampling bernoulli"
    ),
    "feddyn": run("FedDyn, batched, convolutions", "--algorithm feddyn --engine batched --model cnn_gn --rounds 2"),
    "fedsmoo": run("FedSMOO, batched, two clients at once", "--algorithm fedsmoo --engine batched --chunk 2"),
    "mofedsam": run("MoFedSAM, vmap", "--algorithm mofedsam --engine vmap --clip 1.0"),
    "float64": run("FedSMOO, serial, float64", "--algorithm fedsmoo --engine serial --dtype float64"),
    "auto": run("FedLESAM, engine chosen by the package", "--algorithm fedlesam --engine auto"),
    "wire": run(
        "FedAdam rounded on the wire, relaxed initialisation",
        "--algorithm fedadam --engine batched --wire int8 --relaxed 0.1",
    ),
    "own-files": run(
        "a method and a model from files",
        "--algorithm own.py:FedDecay --set a=0.5 --engine vmap --model net.py:net",
    ),
    "released": run(
        "the released FedSMOO, a file of the checkout",
        "--algorithm {source}/experiments/released/head_cut.py:HeadCut --set perturbation=released --engine batched",
    ),
    "dropout": run("a model that draws random numbers", "--algorithm fedsam --engine serial --model net.py:noisy"),
    "synthetic": run(
        "natural clients",
        "--algorithm fedcm --engine batched --dataset synthetic --model softmax --partition natural --clients 30",
    ),
    "text": run(
        "characters of a play, its speakers as clients",
        "--algorithm fedavg --engine serial --dataset text:play.txt --model char_gru --clients 3 --cohort 2 --rounds 2 "
        "--partition natural",
    ),
    "probes": run("measured while it trains", "--algorithm fedsmoo --engine serial --probe sharpness:1,consistency:2"),
    "pack": Configuration(
        "six runs of a grid, two in a batch", ((*FEDSMOO, "sweep", "grid.toml", "--out", "out", "--pack", "2"),), runs=6
    ),
    "compare": Configuration(
        "two methods, two seeds",
        ((*FEDSMOO, "compare", "--algorithms", "fedavg,fedprox", "--seeds", "0,1", *f"{SMALL} --out out".split()),),
        runs=4,
    ),
    "ranks": run("two ranks", "--algorithm scaffold --engine batched", RANKS),
    "exact": run("two ranks, bits of one", "--algorithm fedsmoo --exact true", RANKS),
    "holdout": run("samples held out", "--algorithm fedprox --engine serial --holdout 0.2"),
    "resumed": Configuration(
        "stopped and resumed",
        (
            (STOP, *FEDSMOO, "run", *small("--algorithm fedgamma --engine serial --rounds 200"), "--out", "out"),
            (*FEDSMOO, "resume", "out"),
        ),
    ),
    "simulate": Configuration("a module trained by fedsmoo.simulate", (("{python}", "simulate.py"),)),
}
