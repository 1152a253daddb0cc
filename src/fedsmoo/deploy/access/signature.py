"""Which key a node's request is signed with: Flower's nodes sign the time, with the key they are registered by."""

from __future__ import annotations

import binascii
import datetime
from base64 import b64decode
from collections.abc import Mapping

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

KEY, TIME, SIGNATURE = "flwr-public-key", "flwr-timestamp", "flwr-signature"
MAX_KEY = 1000  # characters; a P-384 key has 288
TOLERANCE = 900.0  # seconds between the clocks; the server is stricter


def signer(headers: Mapping[str, str], now: datetime.datetime) -> bytes | None:
    """Return the public key whose owner signed a request just now; ``None`` if nobody did.

    That shows that the sender holds the key, not that anybody knows it: the server says that.
    """
    try:
        key, time = headers[KEY], headers[TIME]
        if len(key) > MAX_KEY or len(time) > MAX_KEY or len(headers[SIGNATURE]) > MAX_KEY:
            return None
        pem = b64decode(key, validate=True)
        age = (now - datetime.datetime.fromisoformat(time)).total_seconds()
        public = serialization.load_pem_public_key(pem)
        if abs(age) > TOLERANCE or not isinstance(public, ec.EllipticCurvePublicKey):
            return None
        signature = b64decode(headers[SIGNATURE], validate=True)
        public.verify(signature, time.encode("ascii"), ec.ECDSA(hashes.SHA256()))
    except (KeyError, ValueError, TypeError, UnicodeError, binascii.Error, InvalidSignature, UnsupportedAlgorithm):
        return None
    return pem
