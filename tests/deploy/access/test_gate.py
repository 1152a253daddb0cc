"""What the gate refuses before it listens."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from fedsmoo.cli import main


def test_the_gate_refuses_addresses_that_are_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def line(*words: str) -> str:
        with pytest.raises(SystemExit) as end:
            main(["deploy", "gate", *words])
        assert end.value.code == 2
        return capsys.readouterr().err

    monkeypatch.chdir(tmp_path)
    for port in ("70000", "0", "-1"):
        assert line("--port", port) == f"fedsmoo: --port is {port}, but must be between 1 and 65535\n"
    for to in ("nonsense", "127.0.0.1:", ":8000", "127.0.0.1:99999", "https://127.0.0.1:8000"):
        assert line("--to", to) == f"fedsmoo: --to {to!r} is not an address with a port, such as 127.0.0.1:8000\n"
    Path("certificates").mkdir()
    for name in ("ca.crt", "server.crt", "server.key"):
        Path("certificates", name).touch()
    with socket.create_server(("127.0.0.1", 0)) as busy:
        port = busy.getsockname()[1]
        told = line("--port", str(port))
    reason = "Address already in use; choose another --host or --port"
    assert told == f"fedsmoo: cannot listen on 127.0.0.1:{port}: {reason}\n"
