"""Where tokens are given out and taken back: the checks that a client must pass which comes back."""

from collections.abc import Callable
from typing import Any, Final

from forebay.errors import Refused
from forebay.policy import Policy
from forebay.resume.keyring import Key, Keyring, NotOurs, equal
from forebay.resume.message import Unreadable, field_of, unpack
from forebay.resume.stamp import Stamp, Terms
from forebay.resume.used import Used
from forebay.wire.resumed import Asking, Claim, Shown

MAX_TTL_S: Final = 120.0
MAX_AHEAD_S: Final = 60.0
"""A token that lasts this much longer than any may is from a node whose clock is wrong."""
_ANEW: Final = "send the request anew, without Last-Event-ID"
_FROM_STATE: Final = (
    "call_id", "served", "tokens", "counted", "prompt_tokens", "cached_tokens", "id", "created", "model",
    "fingerprint", "limit_tokens", "recent_chars", "finished", "usage",
)  # fmt: skip


class Office:
    """Gives out tokens and takes them back; follows the policy.

    Args:
        own_secret: seals where the configuration names no key.
        wall_s: returns Unix seconds.

    Attributes:
        used: legs that clients have come back for.
    """

    def __init__(self, own_secret: bytes, wall_s: Callable[[], float]) -> None:
        self._own = own_secret
        self._wall_s = wall_s
        self._secrets: tuple[bytes, ...] = (own_secret,)
        self._keyring = Keyring(self._secrets)
        self._terms = Terms(MAX_TTL_S, wall_s)
        self.used = Used()

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; answers under way keep sealing with the key that they began with."""
        settings = policy.resume
        secrets = settings.keys or (self._own,)
        if secrets != self._secrets:
            self._secrets = secrets
            self._keyring = Keyring(secrets)
        self._terms = Terms(min(settings.ttl_s, MAX_TTL_S), self._wall_s)

    def claim(self, asking: Asking) -> Claim:
        """Say who may come back for the answer to a request."""
        return _claim(self._keyring.first, asking)

    def stamp(self, claim: Claim, shown: Shown) -> Stamp:
        """Return what makes the tokens of an answer.

        Args:
            claim: who may come back for it.
            shown: what the client has already; of a new answer no text.
        """
        return Stamp(self._keyring.first, claim, shown, self._terms)

    def open(self, token: bytes, asking: Asking, text: str) -> Shown:
        """Check a token against the request that it comes with; return what the client has.

        Args:
            token: of the latest event that the client has received whole.
            asking: the request that it comes with.
            text: that the client has received.

        Raises:
            Refused: `resume_invalid`, `resume_mismatch`, `resume_expired`, `resume_used`.
        """
        try:
            key, leg, message = self._keyring.open(token)
            state = unpack(message)
        except (NotOurs, Unreadable):
            raise Refused("resume_invalid", f"Last-Event-ID is no token of ours; {_ANEW}") from None
        own = _claim(key, asking)
        if not equal(state.holder, own.holder):
            raise Refused("resume_invalid", f"Last-Event-ID was given to another API key; {_ANEW}")
        self._check_time(state.expires_s)
        if not equal(state.request, own.request):
            raise Refused("resume_mismatch", f"Last-Event-ID belongs to another request body; {_ANEW}")
        _check_text(key, state, text)
        if leg in self.used:
            raise Refused("resume_used", f"somebody has come back for this answer already; {_ANEW}")
        found = {name: field_of(state, name) for name in _FROM_STATE}
        return Shown(leg=leg, text=text, **{name: value for name, value in found.items() if value is not None})

    def take(self, shown: Shown) -> None:
        """Use a token: nobody can come back for the same run of the answer, to this node.

        Raises:
            Refused: `resume_used`.
        """
        if not self.used.take(shown.leg, self._wall_s()):
            raise Refused("resume_used", f"somebody has come back for this answer already; {_ANEW}")

    def _check_time(self, expires_s: int) -> None:
        left_s = expires_s - self._wall_s()
        if left_s < 0.0:
            raise Refused("resume_expired", f"Last-Event-ID has expired; {_ANEW}")
        if left_s > MAX_TTL_S + MAX_AHEAD_S:
            raise Refused("resume_expired", f"Last-Event-ID lasts too long: the clocks of the nodes differ; {_ANEW}")


def _claim(key: Key, asking: Asking) -> Claim:
    parts = [asking.endpoint.encode()]
    # In any order, because it means nothing in JSON.
    for name, value in sorted(asking.members.items()):
        parts += (name.encode(), bytes(value))
    return Claim(key.mac(asking.tenant.encode(), asking.key_digest), key.mac(*parts))


def _check_text(key: Key, state: Any, text: str) -> None:
    """Hold what the client says it has against what it was sent."""
    hasher = key.hasher()
    hasher.update(text.encode(errors="surrogatepass"))
    if len(text) != state.chars or not equal(hasher.digest(), state.text_hash):
        detail = f"forebay_received has {len(text)} characters that are not the {state.chars} sent with Last-Event-ID"
        raise Refused("resume_mismatch", f"{detail}: it must be all the text of the events up to that one; {_ANEW}")
