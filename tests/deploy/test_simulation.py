"""Flower's own simulation engine: every kind of method in one start, to the bits of the serial engine."""

from __future__ import annotations

import pytest
import torch
from patience import PATIENCE

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from kinds import EACH_KIND, settings_of

from fedsmoo.deploy.app import write_app
from fedsmoo.deploy.settings import SIMULATED
from fedsmoo.deploy.store import ServerStore
from fedsmoo.runs.build import assemble
from fedsmoo.runs.config import Config

from .loopback import isolated
from .processes import environment, family, free_ports, run

# A server that runs one small federation after the other, a method each, on one grid.
SERVER = """
from pathlib import Path

from flwr.app import ArrayRecord
from flwr.serverapp import ServerApp

from fedsmoo.deploy.client import Recipe
from fedsmoo.deploy.flower import FlowerStrategy
from fedsmoo.deploy.server import Coordinator
from fedsmoo.deploy.settings import Federation, parse

app = ServerApp()


@app.main()
def main(grid, context):
    config, federation = parse(context.run_config)
    for name, settings in METHODS.items():
        one = config.replace(**settings)
        where = Federation(name=name, server_folder=str(Path(federation.server_folder) / name))
        coordinator = Coordinator(one, where, Recipe().setup(one, Recipe().test(one)))
        FlowerStrategy(coordinator).start(grid, ArrayRecord(), num_rounds=one.rounds)
"""

SETTINGS = {"model": "softmax", "clients": 3, "cohort": 2, "rounds": 2, "local-epochs": 1, "seed": 5}


def test_every_kind_of_method_in_flowers_simulation(tmp_path):
    write_app(tmp_path / "app", "sim")
    kinds = {kind: settings_of(kind) for kind in EACH_KIND if not settings_of(kind).keys() & SIMULATED.keys()}
    (tmp_path / "app" / "federation" / "server.py").write_text(SERVER.replace("METHODS", repr(kinds)))
    http, control = map(str, free_ports(2))
    env = environment(tmp_path / "home", FLWR_LOCAL_SUPERLINK_HTTP_API_PORT=http, FLWR_LOCAL_CONTROL_API_PORT=control)
    folders = {"server-folder": tmp_path / "server", "state-folder": tmp_path / "state"}
    words = [f"{k}={v!r}" if isinstance(v, str) else f"{k}={v}" for k, v in SETTINGS.items()]
    words += [f"{k}='{v}'" for k, v in folders.items()]
    command = [
        "flwr", "run", str(tmp_path / "app"), "local", "--stream", "--run-config", " ".join(words).replace("'", '"'),
        "--federation-config", "num-supernodes=3 client-resources-num-cpus=1 init-args-num-cpus=1",
    ]  # fmt: skip
    with family():
        run(isolated(command), env, timeout=2 * PATIENCE)
    for name, settings in kinds.items():
        config = Config(
            **settings, model="softmax", dataset="digits", partition="dirichlet", u=0.5, clients=3, cohort=2,
            rounds=2, local_epochs=1, batch_size=32, lr=0.1, device="cpu", seed=5, engine="serial",
        )  # fmt: skip
        found = ServerStore(tmp_path / "server" / name).load()
        assert found is not None, name
        for n, v in assemble(config).run().server.items():
            assert torch.equal(v, getattr(found[0], n)), f"{name}: {n}"
