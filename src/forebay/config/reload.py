"""Follows the configuration file and the two documents while the process runs.

All or nothing: a file with a fault changes nothing, and the last good policy stays. What is compared is
always the bytes in the file with the bytes in force, never with the last ones seen, so that putting the
old bytes back ends an error.
"""

from collections.abc import Callable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import Generic

from msgspec import Struct
from msgspec.structs import replace

from forebay.config.documents import (
    Document,
    DocumentError,
    OverrideDocument,
    StateDocument,
    merge,
    newer,
    read_document,
)
from forebay.config.load import Settings, environment, parse_file, read_file
from forebay.errors import ConfigError
from forebay.policy import Policy

PERIOD_S = 0.5  # the longest between a document's change and its effect is 1 s (design, law 2)
# A file that is written in two halves must not be taken after the first: the same bytes must be seen in
# two polls that are at least so far apart.
SETTLE_S = 0.4


class HeldDocument(Struct, frozen=True):
    """What is held of a document.

    Attributes:
        epoch: of the one in force; 0 when there is none.
        seq: of the one in force; 0 when there is none.
        reason: why the one on disk is not in force; empty when it is, or there is none.
    """

    epoch: int = 0
    seq: int = 0
    reason: str = ""


class WatchStatus(Struct, frozen=True):
    """What operators may know about the documents; holds no secret.

    Attributes:
        config_ok: whether the configuration file as it is on disk is in force, or will be.
        last_error: the faults of the file on disk, one line each; empty when it has none.
        applied_hash: of the policy in force.
        applied_at_s: Unix seconds since when.
        warnings: what is written in the file but needs a restart.
        state: of the control plane's document.
        override: of the document of people.
    """

    config_ok: bool
    last_error: tuple[str, ...]
    applied_hash: str
    applied_at_s: float
    warnings: tuple[str, ...] = ()
    state: HeldDocument = HeldDocument()
    override: HeldDocument = HeldDocument()


class _Seen(Struct, frozen=True):
    """Bytes that were read, or the fault of reading them, and since when nothing else was.

    Attributes:
        digest: SHA-256 of the bytes, or of the faults.
        since_s: monotonic seconds.
        judged: whether they have been parsed.
    """

    digest: bytes
    since_s: float
    judged: bool = False


class DocumentWatch:
    """Polls the files and makes a new policy when something has changed.

    `poll` blocks on the disk and may run in a thread, one call at a time. `status` and `settings` may be
    read from any thread: each is one object that is replaced.

    Args:
        settings: what the process started with.
        config: the configuration file; None when it runs without one.
        folder: holds the two documents.
        environ: names to values, for `env:NAME`; that of the process when left out.
    """

    period_s = PERIOD_S

    def __init__(
        self, settings: Settings, config: Path | None, folder: Path, environ: Mapping[str, str] | None = None
    ) -> None:
        self.settings = settings
        self._config = _ConfigFile(settings, config, environment() if environ is None else environ)
        self._folder = folder
        self._state: _Held[StateDocument] = _Held()
        self._override: _Held[OverrideDocument] = _Held()
        self.status = WatchStatus(True, (), settings.policy.hash, float(settings.policy.created))

    def poll(self, now_s: float, wall_s: float) -> Policy | None:
        """Read the files; return the policy to put in force, or None when it stays as it is.

        Args:
            now_s: monotonic seconds.
            wall_s: Unix seconds.
        """
        self._config.poll(now_s, wall_s)
        self._state.poll(lambda: read_document(self._folder, "state"))
        self._override.poll(lambda: read_document(self._folder, "override"))
        self.settings = self._config.settings
        policy = merge(self.settings.policy, self._state.document, self._override.document, wall_s)
        changed = policy.hash != self.status.applied_hash
        self.status = WatchStatus(
            config_ok=not self._config.faults,
            last_error=self._config.faults,
            applied_hash=policy.hash,
            applied_at_s=wall_s if changed else self.status.applied_at_s,
            warnings=self._config.warnings,
            state=self._state.held(),
            override=self._override.held(),
        )
        return policy if changed else None


class _ConfigFile:
    """The configuration file: settings in force, and faults of what is on disk."""

    def __init__(self, started: Settings, path: Path | None, environ: Mapping[str, str]) -> None:
        self.settings = started
        self.faults: tuple[str, ...] = ()
        self.warnings: tuple[str, ...] = ()
        self._started = started
        self._path = path
        self._environ = environ
        self._seen: _Seen | None = None

    def poll(self, now_s: float, wall_s: float) -> None:
        """Read the file, and take it when it has settled and has no fault."""
        if self._path is None:
            return
        try:
            data = read_file(self._path)
        except ConfigError as error:
            # A file that is being replaced may be away for a moment.
            if self._settled(sha256(str(error).encode()).digest(), now_s):
                self.faults = tuple(error.faults)
            return
        digest = sha256(data).digest()
        if digest == self.settings.digest:
            self._seen = None
            self.faults = ()
        elif self._settled(digest, now_s):
            self._take(self._path, data, wall_s)

    def _settled(self, digest: bytes, now_s: float) -> bool:
        """Say once for the same bytes that they have stayed."""
        seen = self._seen
        if seen is None or seen.digest != digest:
            self._seen = _Seen(digest, now_s)
            return False
        if seen.judged or now_s - seen.since_s < SETTLE_S:
            return False
        self._seen = replace(seen, judged=True)
        return True

    def _take(self, path: Path, data: bytes, wall_s: float) -> None:
        started = self._started
        # Keys are judged by the address in use: a file that would be safe only after a restart is refused.
        pinned = replace(started.pinned, bound=started.listen)
        try:
            offered = parse_file(data, str(path), self._environ, wall_s, pinned)
        except ConfigError as error:
            self.faults = tuple(error.faults)
            return
        self.faults = ()
        self.warnings = tuple(
            f"{path}: {name}: is {new} in the file, {old} stays in use until a restart"
            for name, old, new in (
                ("listen", started.listen, offered.listen),
                ("admin", started.admin, offered.admin),
                ("workers", started.workers, offered.workers),
            )
            if old != new
        )
        if offered.joint != started.joint:
            self.warnings += (f"{path}: node or store: has changed in the file; a change needs a restart",)
        self.settings = replace(
            offered, listen=started.listen, admin=started.admin, joint=started.joint, workers=started.workers
        )


class _Held(Generic[Document]):
    """A document in force, and why the one on disk is not."""

    def __init__(self) -> None:
        self.document: Document | None = None
        self._reason = ""

    def poll(self, read: Callable[[], Document | None]) -> None:
        """Read the document, and take it when it is newer; one that has gone stays in force."""
        try:
            found = read()
        except DocumentError as error:
            self._reason = str(error)
            return
        if found is None:
            self._reason = "" if self.document is None else "the file has gone; what it said stays in force"
            return
        verdict = newer(self.document, found)
        self._reason = verdict.reason
        if verdict.take:
            self.document = found

    def held(self) -> HeldDocument:
        """Describe it."""
        if self.document is None:
            return HeldDocument(reason=self._reason)
        return HeldDocument(self.document.epoch, self.document.seq, self._reason)
