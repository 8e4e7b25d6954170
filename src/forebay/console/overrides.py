"""The override document: what people have changed through the API, each change with an end."""

import secrets
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from forebay.clock import Clock
from forebay.config.documents import (
    DocumentError,
    Override,
    OverrideDocument,
    OverrideKind,
    read_document,
    write_document,
)

MAX_OVERRIDES = 100
MIN_TTL_S = 1
MAX_TTL_S = 604_800  # a week: whatever must last longer belongs into the configuration

Version = tuple[int, int]  # (epoch, seq): only ever grows, so that the data plane can refuse an older document
NO_VERSION: Version = (0, 0)
EMPTY = OverrideDocument(epoch=0, seq=0, schema=1)


class Change(Struct, frozen=True):
    """What an override does, without its end; see `Override` for the fields."""

    kind: OverrideKind
    target: str
    tokens: int | None = None
    level: int | None = None


class TooManyOverridesError(Exception):
    """`MAX_OVERRIDES` are active."""


def next_version(current: Version, held: Version, wall_s: float) -> Version:
    """Return a version that is newer than any that has been seen.

    Args:
        current: of the file; `NO_VERSION` when there is none or it is broken.
        held: of the document that the data plane works with; `NO_VERSION` when not known.
        wall_s: Unix seconds; a new epoch is at least this, so that it is newer than a lost file's.
    """
    if current == NO_VERSION:
        return max(int(wall_s), held[0] + 1), 1
    epoch, seq = max(current, held)
    return epoch, seq + 1


class Overrides:
    """The one writer of the override document.

    Methods block on the disk and are not safe to call at once; the caller keeps them in line.

    Args:
        folder: `DATA_DIR/policy`.
        clock: for creation and end.

    Attributes:
        document: as it stands on disk.
        fault: why the document on disk could not be read at start, until it is replaced; None when it could.
    """

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock
        self.document = EMPTY
        self.fault: str | None = None
        self._read()

    def active(self) -> tuple[Override, ...]:
        """Return the overrides that count now, oldest first."""
        return self.document.active(self._clock.wall_s())

    def has_ended(self) -> bool:
        """Say whether `expire` has something to do."""
        return len(self.active()) < len(self.document.entries)

    def add(self, change: Change, ttl_s: int, *, reason: str, by: str, held: Version) -> Override:
        """Let a change count from now on.

        Args:
            change: its tokens and its level fit its kind.
            ttl_s: seconds until it ends; `MIN_TTL_S` to `MAX_TTL_S`.
            reason: for the timeline.
            by: who asks.
            held: see `next_version`.

        Raises:
            TooManyOverridesError: no room; nothing has changed.
            OSError: the document cannot be written; nothing has changed.
        """
        now_s = self._clock.wall_s()
        kept = self.active()
        if len(kept) >= MAX_OVERRIDES:
            raise TooManyOverridesError
        made = Override(
            id=secrets.token_hex(8),
            kind=change.kind,
            target=change.target,
            expires_at=now_s + ttl_s,
            by=by,
            reason=reason,
            created_at=now_s,
            tokens=change.tokens,
            level=change.level,
        )
        self._write((*kept, made), held)
        return made

    def remove(self, id: str, held: Version) -> Override | None:
        """End an override now; None when it is not active.

        Raises:
            OSError: the document cannot be written; nothing has changed.
        """
        found = next((o for o in self.active() if o.id == id), None)
        if found:
            self._write(tuple(o for o in self.active() if o.id != id), held)
        return found

    def expire(self, held: Version) -> tuple[Override, ...]:
        """Take out the overrides whose end has come, and return them.

        Raises:
            OSError: the document cannot be written; the next call tries again.
        """
        kept = self.active()
        ended = tuple(o for o in self.document.entries if o not in kept)
        if ended:
            self._write(kept, held)
        return ended

    def take(self, document: OverrideDocument) -> None:
        """Replace the document by one that other nodes have agreed on; newer than the one here.

        Raises:
            DocumentError: a reader would refuse it; nothing has changed.
            OSError: it cannot be written; nothing has changed.
        """
        self._put(document)

    def _read(self) -> None:
        try:
            self.document = read_document(self._folder, "override") or self.document
        except DocumentError as error:
            self.fault = f"override.json: {error}; the next change replaces it"

    def _write(self, overrides: tuple[Override, ...], held: Version) -> None:
        current = (self.document.epoch, self.document.seq)
        epoch, seq = next_version(current, held, self._clock.wall_s())
        self._put(replace(EMPTY, epoch=epoch, seq=seq, entries=overrides))

    def _put(self, document: OverrideDocument) -> None:
        try:
            write_document(self._folder, "override", document)
        except OSError:
            # The very last step, making the rename last, may fail after the document is in place.
            self._read()
            raise
        self.document = document
        self.fault = None
