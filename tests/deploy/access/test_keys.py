"""Certificates, keys, the gate and the app that ``fedsmoo deploy`` makes."""

from __future__ import annotations

import ssl
import stat
import tomllib

import pytest

pytest.importorskip("flwr", reason="pip install 'fedsmoo[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedsmoo.core import FedsmooError
from fedsmoo.deploy.access.gate import is_allowed
from fedsmoo.deploy.access.keys import make_keys
from fedsmoo.deploy.app import write_app
from fedsmoo.deploy.settings import parse

from ..conftest import OFFLINE


def test_the_servers_certificate_is_accepted_for_its_hosts_only(tmp_path):
    """A real handshake in memory, by Python's own TLS."""
    make_keys(tmp_path, ["127.0.0.1", "server.example"], nodes=1)
    c = tmp_path / "certificates"
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(c / "server.crt", c / "server.key")

    def shake(name: str, ca=c / "ca.crt") -> None:
        client = ssl.create_default_context(cafile=ca)
        a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
        here = client.wrap_bio(a, b, server_hostname=name)
        there = server.wrap_bio(b, a, server_side=True)
        done: set[ssl.SSLObject] = set()
        while len(done) < 2:
            for side in {here, there} - done:
                try:
                    side.do_handshake()
                    done.add(side)
                except ssl.SSLWantReadError:
                    pass

    shake("127.0.0.1")
    shake("server.example")
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        shake("other.example")
    make_keys(tmp_path / "other", ["127.0.0.1"], nodes=1)
    with pytest.raises(ssl.SSLCertVerificationError):
        shake("127.0.0.1", tmp_path / "other" / "certificates" / "ca.crt")


def test_keys_are_pairs_that_only_their_owner_reads(tmp_path):
    make_keys(tmp_path, ["localhost"], nodes=3)
    publics = set()
    for i in range(3):
        path = tmp_path / "keys" / f"node-{i}"
        private = serialization.load_ssh_private_key(path.read_bytes(), None)
        public = serialization.load_ssh_public_key(path.with_suffix(".pub").read_bytes())
        assert isinstance(private.curve, ec.SECP384R1)
        assert private.public_key().public_numbers() == public.public_numbers()
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        publics.add(public.public_numbers())
    assert len(publics) == 3
    assert stat.S_IMODE((tmp_path / "certificates" / "server.key").stat().st_mode) == 0o600
    assert not list(tmp_path.rglob("ca.key")), "the authority's key is not kept"
    authority = x509.load_pem_x509_certificate((tmp_path / "certificates" / "ca.crt").read_bytes())
    leaf = x509.load_pem_x509_certificate((tmp_path / "certificates" / "server.crt").read_bytes())
    leaf.verify_directly_issued_by(authority)
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    before = (tmp_path / "keys" / "node-0").read_bytes()
    with pytest.raises(FedsmooError, match="there already"):
        make_keys(tmp_path, ["localhost"], nodes=3)
    assert (tmp_path / "keys" / "node-0").read_bytes() == before


@pytest.mark.parametrize(
    "path",
    ["/v1/control/start-run", "/v1/runtime/x", "/", "/v1/fleet", "/v1/fleet/../control/start-run", "/v1/fleet//x",
     "/v1/fleet/%2e%2e/control/x", "/V1/fleet/x", "/v1/fleet/..;/control", "/v1/fleet/x\\..\\y", "/health"],
)  # fmt: skip
def test_the_gate_is_shut(path):
    assert not is_allowed(path.encode())


def test_the_app_is_ready(tmp_path):
    paths = write_app(tmp_path / "app", "clinic", clients=4)
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    table = tomllib.loads(text)
    assert table["project"]["dependencies"] == [], "nothing is downloaded by a node"
    config, federation = parse(table["tool"]["flwr"]["app"]["config"])
    assert (config.algorithm, config.clients, federation.name) == ("fedsmoo", 4, "clinic")
    offline = (tmp_path / "app" / "offline.sh").read_text()
    assert all(f"export {name}={value}" in offline for name, value in OFFLINE.items())
    for path in paths:
        if path.suffix == ".py":
            compile(path.read_text(), str(path), "exec")
    with pytest.raises(FedsmooError, match="not an empty folder"):
        write_app(tmp_path / "app", "clinic")


def test_the_commands(tmp_path, monkeypatch, capsys):
    from fedsmoo.cli import main

    def code(*words: str) -> int | None:
        with pytest.raises(SystemExit) as end:
            main(["deploy", *words])
        return end.value.code or 0

    monkeypatch.chdir(tmp_path)
    assert code("init", "my-app") == 0
    assert code("keys", ".", "--nodes", "1") == 0
    assert 'name = "my-app"' in (tmp_path / "my-app" / "pyproject.toml").read_text()
    assert (tmp_path / "keys" / "node-0").exists()
    capsys.readouterr()
    assert code("gate", "--certificates", "none") == 2
    assert capsys.readouterr().err == ("fedsmoo: there is no none/ca.crt: make certificates with fedsmoo deploy keys\n")
