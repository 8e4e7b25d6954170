"""Whether a request may be sent: its keyed print, how it stands in the quarantine, and what people have pardoned."""

import secrets
from collections.abc import Iterable

from forebay.errors import Refused
from forebay.routing.poison import Quarantine, Standing, fingerprint
from forebay.wire.members import Members


class Docket:
    """Looks requests up.

    Attributes:
        quarantine: what is remembered.
        accuses: somebody is suspected or quarantined; if not, no request need be looked up.
    """

    __slots__ = ("_key", "_pardoned", "accuses", "quarantine")

    def __init__(self) -> None:
        # Its own key, for as long as the process lives: what is remembered must be found again (T48).
        self._key = secrets.token_bytes(32)
        self._pardoned: frozenset[int] = frozenset()
        self.quarantine = Quarantine()
        self.accuses = False

    def pardon(self, targets: Iterable[str]) -> list[str]:
        """Let requests go free for as long as they are named; return those that were remembered.

        Args:
            targets: fingerprints in hexadecimal.
        """
        named = frozenset([int(target, 16) for target in targets])
        known = [seen for seen in sorted(named - self._pardoned) if self.quarantine.remove(seen)]
        self._pardoned = named
        return [f"{seen:016x}" for seen in known]

    def tick(self, now_s: float) -> None:
        """See whether anybody is accused."""
        self.accuses = self.quarantine.accuses(now_s)

    def print_of(self, members: Members) -> int:
        """Return the fingerprint of a request."""
        return fingerprint(self._key, members.values)

    def standing(self, seen: int, now_s: float) -> Standing:
        """Say how a request stands; `free` when it is pardoned."""
        return "free" if seen in self._pardoned else self.quarantine.standing(seen, now_s)

    def check(self, seen: int, now_s: float) -> Standing:
        """Return how a request stands.

        Raises:
            Refused: `request_quarantined`.
        """
        standing = self.standing(seen, now_s)
        if standing == "quarantined":
            raise Refused(
                "request_quarantined",
                "two engines died while they worked on this request, so it is not sent to another for a while; "
                f"change it, or have its operator pardon {seen:016x}",
            )
        return standing
