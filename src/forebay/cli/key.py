"""`forebay key`: make API keys."""

import hashlib
import secrets

KEY_BYTES = 32  # 256 random bits: far beyond guessing, so that a plain SHA-256 digest of it is safe to store


def new_key() -> tuple[str, str]:
    """Return a new random key, and the text that stands for it in the configuration (its digest)."""
    key = f"sk-{secrets.token_urlsafe(KEY_BYTES)}"
    return key, f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def run_key_new() -> None:
    """Print a new key, once, and what to put into the configuration instead of it."""
    key, digest = new_key()
    print(f"key, for the client (it is not kept anywhere):  {key}")
    print(f"for `keys:` of its tenant:                      {digest}")
