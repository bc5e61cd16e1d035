"""How a webhook is signed, in and out: HMAC-SHA256 over the time and the raw body."""

import hashlib
import hmac

WINDOW = 300.0  # seconds by which a signature may be old, or a clock may be wrong
TIMESTAMP, SIGNATURE = "x-legato-timestamp", "x-legato-signature"


def sign(secret: str, timestamp: int, body: bytes) -> dict[str, str]:
    """The headers that prove a body."""
    return {TIMESTAMP: str(timestamp), SIGNATURE: f"v1={_digest(secret, str(timestamp), body)}"}


def proven(secret: str, timestamp: str, signature: str, body: bytes, now: float) -> bool:
    """Whether a body was signed with the secret, a short while ago. Without a secret, nothing is."""
    if not secret or not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 12):
        return False
    if abs(now - int(timestamp)) > WINDOW:
        return False
    expected = f"v1={_digest(secret, timestamp, body)}"
    return hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace"))


def _digest(secret: str, timestamp: str, body: bytes) -> str:
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
