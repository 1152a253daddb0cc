"""A real federation on this machine: server, gate and three nodes under TLS and authentication, ended by their ids."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from patience import PATIENCE, wait_for

from .processes import end, environment, family, free_ports, run

CONNECTION = """\
[superlink]
default = "mine"

[superlink.mine]
address = "127.0.0.1:{port}"
root-certificates = "{ca}"
"""


@dataclass
class Programs:
    """Everything that runs, in one folder."""

    folder: Path
    processes: dict[str, subprocess.Popen] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.held = ExitStack()
        self.held.enter_context(family())
        self.port, self.gate = free_ports(2)
        self.env = environment(self.folder / "home")
        text = CONNECTION.format(port=self.port, ca=self.folder / "certificates" / "ca.crt")
        (self.folder / "home" / "config.toml").write_text(text)

    def start(self, name: str, *command: str | Path) -> subprocess.Popen:
        """A program whose output goes to a file."""
        with (self.folder / f"{name}.log").open("ab") as log:
            words = [str(c) for c in command]
            process = subprocess.Popen(words, env=self.env, cwd=self.folder, stdout=log, stderr=log)
        self.processes[name] = process
        return process

    def run(self, *command: str | Path, timeout: float = PATIENCE) -> str:
        return run(list(command), self.env, timeout, self.folder)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def server(self) -> None:
        """The Flower server, on this machine only, and the gate through which nodes come."""
        c = self.folder / "certificates"
        self.start(
            "superlink", "flower-superlink", "--host", "127.0.0.1", "--port", str(self.port),
            "--ssl-ca-certfile", c / "ca.crt", "--ssl-certfile", c / "server.crt", "--ssl-keyfile", c / "server.key",
            "--enable-supernode-auth", "--database", self.folder / "superlink.db",
            "--disable-runtime-dependency-installation",
        )  # fmt: skip
        self.start("gate", "fedsmoo", "deploy", "gate", "--port", str(self.gate), "--to", f"127.0.0.1:{self.port}")
        wait_for(lambda: "Uvicorn running" in self.log("superlink"), "the server")

    def node(self, i: int, key: Path | None = None, name: str | None = None, *security: str) -> subprocess.Popen:
        """Node i; its clients' vectors lie in a folder of its own."""
        key = key or self.folder / "keys" / f"node-{i}"
        words = security or (
            "--root-certificates", str(self.folder / "certificates" / "ca.crt"),
            "--auth-supernode-private-key", str(key),
        )  # fmt: skip
        return self.start(
            name or f"node-{i}", "flower-supernode", "--superlink", f"127.0.0.1:{self.gate}", *words,
            "--host", "127.0.0.1", "--port", str(free_ports(1)[0]), "--max-retries", "3",
            "--node-config", f'partition-id={i} num-partitions=3 state-folder="{self.folder / f"state-{i}"}"',
        )  # fmt: skip

    def stop(self) -> None:
        for process in self.processes.values():
            end(process, grace=5)
        self.held.close()
