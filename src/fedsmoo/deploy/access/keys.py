"""Certificates and keys of a federation: a small authority, the server's certificate, and a key pair for every node.

Made for a federation that you run yourself or try out. The authority's private key signs once and is then thrown away.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path
from typing import Any

from fedsmoo.core import FedsmooError
from fedsmoo.runs.storage.files import make_folder, sync_folder


def _tools() -> Any:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError as e:
        raise FedsmooError(f"making keys needs Flower's own dependencies: pip install 'fedsmoo[flower]' ({e})") from e
    return x509, hashes, serialization, ec


def make_keys(folder: Path, hosts: list[str], nodes: int, days: int = 365) -> list[Path]:
    """Write ``certificates/`` (for the server, ``ca.crt`` also for the nodes) and ``keys/`` (a pair for each node).

    Args:
        folder: where to write; nothing in it is overwritten.
        hosts: names and addresses under which nodes reach the server.
        nodes: how many key pairs to make.
        days: how long the certificates are valid.
    """
    if nodes < 1 or days < 1 or not hosts:
        raise FedsmooError("keys need one node, one day and one host name at least")
    files = {**server_files(hosts, days), **{name: text for i in range(nodes) for name, text in node_files(i).items()}}
    there = [name for name in files if (folder / name).exists()]
    if there:
        raise FedsmooError(f"{folder / there[0]} is there already: choose another folder, nothing was overwritten")
    try:
        for name, content in files.items():
            write_private(folder / name, content, public=name.endswith((".crt", ".pub")))
    except OSError as e:
        raise FedsmooError(f"cannot write keys into {folder}: {e.strerror}") from e
    return [folder / name for name in files]


def write_private(path: Path, content: bytes, public: bool) -> None:
    """Write a file, durably, that, unless public, only its owner can read from the moment it exists."""
    make_folder(path.parent)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644 if public else 0o600)
    with os.fdopen(fd, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    sync_folder(path.parent)


def node_files(i: int) -> dict[str, bytes]:
    """Make the key pair of a node, in the form that Flower reads: ECDSA P-384, OpenSSH."""
    _, _, serialization, ec = _tools()
    key = ec.generate_private_key(ec.SECP384R1())
    form = serialization.PrivateFormat.OpenSSH
    private = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return {f"keys/node-{i}": private, f"keys/node-{i}.pub": public + b"\n"}


def server_files(hosts: list[str], days: int) -> dict[str, bytes]:
    """Make the authority's certificate, and the server's certificate and key."""
    x509, hashes, serialization, ec = _tools()
    authority, server = (ec.generate_private_key(ec.SECP384R1()) for _ in range(2))
    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "fedsmoo federation authority")])
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, hosts[0][:64])])
    now = datetime.datetime.now(datetime.UTC)

    def begin(name: Any, key: Any) -> Any:
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
        builder = builder.not_valid_after(now + datetime.timedelta(days=days))
        return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)

    usage = dict.fromkeys(
        ["digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
         "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"], False,
    )  # fmt: skip
    ca = begin(issuer, authority).add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    ca = ca.add_extension(x509.KeyUsage(**{**usage, "key_cert_sign": True, "crl_sign": True}), critical=True)
    ca = ca.sign(authority, hashes.SHA384())
    leaf = begin(subject, server).add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    leaf = leaf.add_extension(x509.KeyUsage(**{**usage, "digital_signature": True}), critical=True)
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    leaf = leaf.add_extension(x509.SubjectAlternativeName([alternative(x509, h) for h in hosts]), critical=False)
    issued = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    leaf = leaf.add_extension(issued, critical=False).sign(authority, hashes.SHA384())
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return {
        "certificates/ca.crt": ca.public_bytes(pem),
        "certificates/server.crt": leaf.public_bytes(pem),
        "certificates/server.key": server.private_bytes(pem, form, serialization.NoEncryption()),
    }


def alternative(x509: Any, host: str) -> Any:
    """Return a host as a certificate names it: an address or a name."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
