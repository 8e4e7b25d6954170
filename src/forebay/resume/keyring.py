"""Sealing: tokens that show nothing, cannot be changed, and open on every node that has the key.

A token is `version (1) · key (4) · leg (16) · number (4) · AES-256-GCM of the message · tag (16)`, in base64url. Each
run of an answer (a leg) seals with a key of its own, derived from the node's key and 16 random bytes, and numbers its
tokens: so no nonce comes twice under a key, however many tokens a cluster makes. Random nonces under one key would
have to stop after 2^32 tokens (NIST SP 800-38D, 8.3), which busy nodes make in a day.
"""

import hashlib
import hmac
import os
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as Base64Error
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

VERSION: Final = b"\x01"
LEG_BYTES: Final = 16
MAC_BYTES: Final = 16
MAX_TOKEN_BYTES: Final = 1024
MAX_NUMBER: Final = 0xFFFFFFFF
_ID_BYTES: Final = 4
_HEAD_BYTES: Final = 1 + _ID_BYTES + LEG_BYTES + 4
_TAG_BYTES: Final = 16
_KEY_BYTES: Final = 32


class NotOurs(Exception):
    """A token that no key of ours opens: broken, changed, or sealed with a key that is gone."""


class TooLarge(Exception):
    """What is to be sealed makes a token larger than `MAX_TOKEN_BYTES`."""


def _derived(secret: bytes, salt: bytes | None, purpose: bytes, length_bytes: int = _KEY_BYTES) -> bytes:
    return HKDF(SHA256(), length_bytes, salt, b"forebay resume 1 " + purpose).derive(secret)


class Key:
    """One key of a node.

    Args:
        secret: at least 16 bytes that nobody can guess.

    Attributes:
        id: tells it from others, 4 bytes; says nothing about the secret.
    """

    __slots__ = ("_mac", "_seal", "id")

    def __init__(self, secret: bytes) -> None:
        self.id = _derived(secret, None, b"id", _ID_BYTES)
        self._seal = _derived(secret, None, b"seal")
        self._mac = _derived(secret, None, b"mac")

    def hasher(self) -> "hashlib.blake2b":
        """Return a hash that only holders of the key can make; takes its text piece by piece."""
        return hashlib.blake2b(key=self._mac, digest_size=MAC_BYTES)

    def mac(self, *parts: bytes) -> bytes:
        """Return the hash of some parts, 16 bytes; where one ends and the next begins makes a difference."""
        hasher = self.hasher()
        for part in parts:
            hasher.update(len(part).to_bytes(8, "big"))
            hasher.update(part)
        return hasher.digest()

    def leg(self, leg: bytes) -> AESGCM:
        """Return what seals and opens the tokens of one leg."""
        return AESGCM(_derived(self._seal, leg, b"leg"))


class Seal:
    """Seals the tokens of one leg.

    Attributes:
        leg: its name, 16 random bytes.
        number: tokens sealed so far.
    """

    __slots__ = ("_box", "_head", "leg", "number")

    def __init__(self, key: Key) -> None:
        self.leg = os.urandom(LEG_BYTES)
        self._head = VERSION + key.id + self.leg
        self._box = key.leg(self.leg)
        self.number = 0

    def seal(self, message: bytes) -> bytes:
        """Return a token that holds a message.

        Raises:
            TooLarge: the message is too long, or this is the 2^32nd token.
        """
        if self.number >= MAX_NUMBER:
            raise TooLarge
        self.number += 1
        head = self._head + self.number.to_bytes(4, "big")
        token = urlsafe_b64encode(head + self._box.encrypt(_nonce(head), message, head)).rstrip(b"=")
        if len(token) > MAX_TOKEN_BYTES:
            raise TooLarge
        return token


class Keyring:
    """The keys of a node: the first one seals, all of them open.

    Args:
        secrets: of the keys, at least one.
    """

    def __init__(self, secrets: Sequence[bytes]) -> None:
        self._keys = [Key(secret) for secret in secrets]

    @property
    def first(self) -> Key:
        """The key that seals."""
        return self._keys[0]

    def open(self, token: bytes) -> tuple[Key, bytes, bytes]:
        """Open a token; return its key, its leg and its message.

        Raises:
            NotOurs: it does not open.
        """
        sealed = _decoded(token)
        head, box = sealed[:_HEAD_BYTES], sealed[_HEAD_BYTES:]
        if not head.startswith(VERSION) or len(box) < _TAG_BYTES:
            raise NotOurs
        leg = head[1 + _ID_BYTES : 1 + _ID_BYTES + LEG_BYTES]
        for key in self._keys:
            if key.id == head[1 : 1 + _ID_BYTES]:
                try:
                    return key, leg, key.leg(leg).decrypt(_nonce(head), box, head)
                except InvalidTag:
                    continue
        raise NotOurs


def equal(one: bytes, other: bytes) -> bool:
    """Compare two hashes in a time that says nothing about them."""
    return hmac.compare_digest(one, other)


def _nonce(head: bytes) -> bytes:
    return head[-4:].rjust(12, b"\0")


def _decoded(token: bytes) -> bytes:
    if not token or len(token) > MAX_TOKEN_BYTES:
        raise NotOurs
    try:
        sealed = urlsafe_b64decode(token + b"=" * (-len(token) % 4))
    except (Base64Error, ValueError):
        raise NotOurs from None
    # One spelling for each token: the decoder passes over foreign characters and unused bits.
    if urlsafe_b64encode(sealed).rstrip(b"=") != token:
        raise NotOurs
    return sealed
