"""A federation with a large model on this machine: seconds a round, peak memory, and whether the bits are right.

    python -m benchmarks.cpu.federation [--rounds 3] [--wire exact]

ResNet-18-GN with all its 11.2 M weights (45 MB a vector), FedSMOO (two vectors each way), three nodes under TLS and
authentication behind the gate, two local steps a round. Needs fedsmoo[flower]; loopback only.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from deploy.federation import Programs
from deploy.replay import reports
from patience import wait_for

from fedsmoo.core import Round, Vectors
from fedsmoo.data.batches.plan import make_plan
from fedsmoo.deploy.client import Recipe
from fedsmoo.deploy.settings import parse
from fedsmoo.deploy.store import ServerStore
from fedsmoo.engines.serial import train_client

HOOKS = '''
import numpy as np
import torch

from fedsmoo.data.dataset import Dataset
from fedsmoo.models.resnet import ResNet18GN


def data(client, config):
    """Eight random pictures for each client: their number does not matter here."""
    rng = np.random.default_rng(client)
    x = torch.from_numpy(rng.integers(0, 256, (8, 32, 32, 3), dtype=np.uint8))
    y = torch.from_numpy(rng.integers(0, 10, 8))
    return Dataset("random", x, y, x, y, 10, (0.5,) * 3, (0.25,) * 3)


def test(config):
    return data(99, config)


class Whole(torch.nn.Module):
    """The model with all its weights: a name that the live layout does not know."""

    def __init__(self):
        super().__init__()
        self.net = ResNet18GN(10, 3, 2)

    def forward(self, x):
        return self.net(x)


def model(config, data):
    return Whole()
'''
CLIENT = "from fedsmoo.deploy.flower import client_app\nfrom federation.hooks import data, model, test\n"
CLIENT += "app = client_app(data=data, model=model, test=test)\n"


def peaks(programs: Programs, out: dict[str, int], stop: threading.Event) -> None:
    """The largest resident memory of every kind of program, sampled."""
    while not stop.wait(0.2):
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
                mine = f"FLWR_HOME={programs.folder}".encode() in (entry / "environ").read_bytes()
                kb = next(x for x in (entry / "status").read_text().splitlines() if x.startswith("VmRSS"))
            except (OSError, StopIteration):
                continue
            name = next((Path(w.decode()).name for w in words if b"fl" in w and b"bin/fl" in w), None)
            if b"gate" in words:
                name = "gate"
            if mine and name:
                out[name] = max(out.get(name, 0), int(kb.split()[1]) // 1024)


def replay(config, folder: Path, rounds: int) -> Vectors:
    """The same rounds in this process."""
    sys.path.insert(0, str(folder / "app"))
    from federation.hooks import data, model, test

    recipe = Recipe(data=data, test=test, model=model)
    setups = [recipe.setup(config, data(i, config)) for i in range(3)]
    algorithm, task = setups[0].algorithm, setups[0].task
    server = algorithm.init(recipe.setup(config, test(config)).task.model.initial())
    own: dict[int, Vectors] = {}
    for number in range(rounds):
        down, lr = algorithm.sent(server), config.lr * config.lr_decay**number
        mean: dict[str, torch.Tensor] = {}
        for i in range(3):
            index = {i: torch.arange(8).numpy()}
            plan = make_plan(config.seed, number, [i], index, config.batch_size, None, config.local_steps)
            rnd = Round(number, lr, config.local_steps, 1.0)
            _, own[i], up, _ = train_client(setups[i], down, own.get(i, algorithm.first_contact(down)), plan, rnd)
            for n, v in up.items():
                mean[n] = v * (1 / 3) if i == 0 else mean[n] + v * (1 / 3)
        server = algorithm.aggregate(server, Vectors(**mean), Round(number, lr, float(config.local_steps), 1.0))
    assert task.model.layout.size > 11_000_000
    return server


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--wire", default="exact")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="federation-"))
    p, memory, stop = Programs(folder), {}, threading.Event()
    try:
        p.run("fedsmoo", "deploy", "init", "app", "--clients", "3")
        app = folder / "app" / "federation"
        (app / "hooks.py").write_text(HOOKS)
        (app / "client.py").write_text(CLIENT)
        (app / "server.py").write_text(CLIENT.replace("client_app", "server_app"))
        toml = folder / "app" / "pyproject.toml"
        toml.write_text(toml.read_text().replace("local-epochs = 2", "local-steps = 2"))
        p.run("fedsmoo", "deploy", "keys", ".")
        p.server()
        for i in range(3):
            p.run("flwr", "supernode", "register", f"keys/node-{i}.pub", "mine")
            p.node(i)
        threading.Thread(target=peaks, args=(p, memory, stop), daemon=True).start()
        values = {
            "name": "large", "rounds": options.rounds, "batch-size": 4, "lr": 0.01, "wire": options.wire,
            "server-folder": str(folder / "server"),
        }  # fmt: skip
        words = " ".join(f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in values.items())
        began = time.perf_counter()
        run = p.start("run", "flwr", "run", "app", "mine", "--stream", "--run-config", words)
        wait_for(lambda: run.poll() is not None, "the run", 900)
        seconds = time.perf_counter() - began
        told = reports(folder / "server")
    except BaseException:
        print(p.log("run")[-3000:])
        raise
    finally:
        stop.set()
        p.stop()
    import tomllib

    config, _ = parse({**tomllib.loads(toml.read_text())["tool"]["flwr"]["app"]["config"], **values})
    found = ServerStore(folder / "server").load()
    assert found is not None
    right = all(torch.equal(v, getattr(found[0], n)) for n, v in replay(config, folder, options.rounds).items())
    facts = {
        "wire": options.wire, "rounds": len(told), "accepted": [r["accepted"] for r in told],
        "seconds_by_round": [round(r["seconds"], 1) for r in told], "seconds": round(seconds, 1),
        "right_to_the_bit": right, "peak_MB": dict(sorted(memory.items())),
    }  # fmt: skip
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
