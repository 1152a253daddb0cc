"""A real server and three nodes under TLS and authentication; a node dies mid-run, comes back, and the bits are right.

Takes some minutes of mostly waiting: run it with ``make test-deploy``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
import torch
from patience import PATIENCE, wait_for

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from cryptography.hazmat.primitives import serialization

from fedsmoo.deploy.members import fingerprint
from fedsmoo.deploy.settings import parse
from fedsmoo.deploy.store import ServerStore

from .federation import Programs
from .processes import end
from .replay import replayed, reports

pytestmark = [
    pytest.mark.deploy,
    pytest.mark.skipif(not os.environ.get("FEDSMOO_TEST_DEPLOY"), reason="make test-deploy runs this"),
]

ROUNDS = 30  # more than anybody waits for: the run is stopped when it has shown what it should


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("federation")
    p = Programs(folder)
    try:
        p.run("fedsmoo", "deploy", "init", "app", "--clients", "3")
        p.run("fedsmoo", "deploy", "keys", ".", "--nodes", "4")
        p.server()
        for i in range(3):  # the fourth key stays unregistered
            p.run("flwr", "supernode", "register", f"keys/node-{i}.pub", "mine")
            p.node(i)
        yield p
    finally:
        p.stop()


def settings(p: Programs, name: str, algorithm: str) -> dict:
    return {
        "name": name, "algorithm": algorithm, "model": "softmax", "dataset": "digits", "rounds": ROUNDS,
        "local-epochs": 1, "round-timeout": 180.0, "server-folder": str(p.folder / name),
    }  # fmt: skip


def begin(p: Programs, name: str, algorithm: str):
    words = [f'{k}="{v}"' if isinstance(v, str) else f"{k}={v}" for k, v in settings(p, name, algorithm).items()]
    process = p.start(name, "flwr", "run", "app", "mine", "--stream", "--run-config", " ".join(words))
    wait_for(lambda: everybody(p, name) or process.poll() is not None, "a round of all nodes")
    assert everybody(p, name), p.log(name)[-3000:]
    return process


def told(p: Programs, name: str) -> list[dict]:
    return reports(p.folder / name) if (p.folder / name / "rounds.jsonl").exists() else []


def everybody(p: Programs, name: str) -> bool:
    """Whether the last round had all nodes; on a busy machine the first ones may not."""
    rounds = told(p, name)
    return bool(rounds) and rounds[-1]["accepted"] == [0, 1, 2]


def kill(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGKILL)
    process.wait()


def finish(p: Programs, name: str, process) -> None:
    """Stop the run by its number, as a user does."""
    run_id = next(word for line in p.log(name).splitlines() if "run" in line.lower() for word in line.split()
                  if word.strip(".").isdigit() and len(word) > 12).strip(".")  # fmt: skip
    p.run("flwr", "stop", run_id, "mine")
    end(process)


def check(p: Programs, name: str, algorithm: str) -> None:
    """The server's vectors, to the bit, from a replay with whoever took part."""
    import tomllib

    values = tomllib.loads((p.folder / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    found = ServerStore(p.folder / name).load()
    assert found is not None
    server, facts = found
    config, _ = parse({**values, **settings(p, name, algorithm)})
    for n, v in replayed(config, told(p, name)[: facts["number"]]).items():
        assert torch.equal(v, getattr(server, n)), n
    for i in range(3):  # clients are bound to the keys that were registered for their nodes
        public = serialization.load_ssh_public_key((p.folder / "keys" / f"node-{i}.pub").read_bytes())
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        key = fingerprint(public.public_bytes(serialization.Encoding.PEM, form))
        assert facts["members"][str(i)]["key"] == key


def test_strangers_are_refused(programs):
    p = programs
    p.run("curl", "-sf", "--cacert", "certificates/ca.crt", f"https://127.0.0.1:{p.port}/health")
    unknown = p.node(0, p.folder / "keys" / "node-3", "unregistered")
    plain = p.node(1, None, "plaintext", "--insecure")
    for process in (unknown, plain):
        assert process.wait(PATIENCE) != 0
    assert "305" in p.log("unregistered") or "not registered" in p.log("unregistered").lower()


def test_nodes_that_are_killed_or_stopped_come_back_to_the_same_bits(programs):
    p = programs
    process = begin(p, "run", "fedsmoo")
    for node, others, leave in ((2, [0, 1], kill), (1, [0, 2], end)):
        leave(p.processes[f"node-{node}"])
        wait_for(lambda o=others: o in [r["accepted"] for r in told(p, "run")], "a round without the node")
        until = time.monotonic() + PATIENCE  # a killed node's key is refused until the server has noticed its end
        while not everybody(p, "run"):
            assert time.monotonic() < until, p.log(f"node-{node}")[-2000:]
            if p.processes[f"node-{node}"].poll() is not None:
                p.node(node)
            time.sleep(1)
    finish(p, "run", process)
    assert any(r["refused"].get("2", "").startswith(("missing", "error")) for r in told(p, "run"))
    check(p, "run", "fedsmoo")
