"""A store as this room sees it: hashes that change as a whole, and one clock. No I/O."""

from collections.abc import Mapping
from typing import Final, Protocol

from msgspec import Struct

SHARES_KEY: Final = "forebay:shares"
"""Hash: a field for each node, its record of what it uses and may use."""
DOCUMENTS_KEY: Final = "forebay:documents"
"""Hash: `override` and `state`, as they stand in `DATA_DIR/policy`."""
VERSION_FIELD: Final = ":version"
"""Changes with each change of a hash; names of nodes and documents hold no colon."""
MAX_FIELDS: Final = 512
MAX_BYTES: Final = 8 * 1024 * 1024
"""Of all fields of a hash; more is refused by the store itself, before it is sent."""


def month_key(month: int) -> str:
    """Return the hash with what each node has spent in a month.

    Args:
        month: since the year 0, as `spending.month_of` counts.
    """
    return f"forebay:month:{month // 12:04}-{month % 12 + 1:02}"


def level_key(node: str) -> str:
    """Return the hash with the report of a node's ladder, and with levels that people have set for that node."""
    return f"DEGRADE:{node}:level"


ALL_LEVELS_KEY: Final = "DEGRADE:*:level"
"""The same for all nodes; there is no report in it."""


class StoreError(Exception):
    """The store cannot be used now; the text is the reason, without address, user and password."""


class Page(Struct, frozen=True):
    """A hash as it was at one moment.

    Attributes:
        now_ms: the store's own clock, which is the same for all nodes; milliseconds since the epoch.
        fields: by name; empty when there is no such hash.
    """

    now_ms: int
    fields: dict[str, bytes]

    @property
    def version(self) -> bytes:
        """What `Store.swap` must find to change it."""
        return self.fields.get(VERSION_FIELD, b"")


class Store(Protocol):
    """Where nodes meet. Every method ends within a bounded time, or raises `StoreError`."""

    async def read(self, key: str) -> Page:
        """Return a hash.

        Raises:
            StoreError: no good answer in time, or the hash is beyond `MAX_FIELDS` or `MAX_BYTES`.
        """
        ...

    async def swap(self, key: str, seen: bytes, fields: Mapping[str, bytes | None], ttl_s: int) -> bool:
        """Change a hash if nobody has changed it since it was read.

        Args:
            key: of the hash.
            seen: its version when it was read.
            fields: to set, the new version among them; None takes a field out.
            ttl_s: seconds after which it goes unless it is changed again.

        Returns:
            False when somebody was faster; nothing has changed then.

        Raises:
            StoreError: no good answer in time; it may have been changed all the same.
        """
        ...

    async def put(self, key: str, fields: Mapping[str, bytes | None], ttl_s: int) -> None:
        """Set fields of a hash whoever has changed it; None takes one out, others stay.

        Raises:
            StoreError: see `swap`.
        """
        ...

    async def close(self) -> None:
        """End the connection; never raises."""
        ...
