"""Keeps the documents of this node in step with the other nodes, through the shared store.

People change the document of one node, which counts at once and is published; the control planes of the others take it
over and write it down for their data planes. Without the store each node goes on with its own, and changes of both
sides are put together when it is back.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from typing import Final

from forebay.clock import Clock
from forebay.config.documents import (
    DocumentError,
    DocumentName,
    OverrideDocument,
    StateDocument,
    decode_document,
    encode_document,
)
from forebay.console.reconcile import Step, fault_of, version_of
from forebay.store.contract import DOCUMENTS_KEY, VERSION_FIELD, Page, Store, StoreError

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.5
LONGEST_WAIT_S: Final = 2.0
LONGEST_OVERRIDE_S: Final = 604_800.0
_TTL_S: Final = 90 * 86_400
_TRIES: Final = 4

Reconciled = Callable[[OverrideDocument | None], Awaitable[Step]]
"""Decides about the override document of the store, writes what is to be written here, and returns the step."""


class InStep:
    """The exchange of documents.

    Args:
        store: where nodes meet.
        clock: wall time.
        reconciled: see `Reconciled`.
        published: called with an override document that the store has taken.
        state_of: reads and writes the state document of this node.

    Attributes:
        fault: why documents are not exchanged now; None when they are.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
        reconciled: Reconciled,
        published: Callable[[OverrideDocument], None],
        state_of: "StateFile",
    ) -> None:
        self._store = store
        self._clock = clock
        self._reconciled = reconciled
        self._published = published
        self._state = state_of
        self._changed = asyncio.Event()
        self.fault: str | None = None

    def wake(self) -> None:
        """Exchange now: something has changed here."""
        self._changed.set()

    async def run(self) -> None:
        """Exchange until cancelled, twice in a second and after each change."""
        wait_s = PERIOD_S
        try:
            while True:
                self._changed.clear()
                wait_s = PERIOD_S if await self.round() else min(LONGEST_WAIT_S, 2 * wait_s)
                try:
                    async with asyncio.timeout(wait_s):
                        await self._changed.wait()
                except TimeoutError:
                    continue
        finally:
            await self._store.close()

    async def round(self) -> bool:
        """Exchange once; return whether that went well."""
        try:
            for _ in range(_TRIES):
                if await self._exchange():
                    self._note(None)
                    return True
            self._note("other nodes are always faster")
        except StoreError as error:
            self._note(f"the store does not answer as it should: {error}")
        except DocumentError as error:
            self._note(f"a document there is not taken: {error}; delete {DOCUMENTS_KEY} when no newer program wrote it")
        except OSError as error:
            self._note(f"a document cannot be written here: {error.strerror}")
        return False

    async def _exchange(self) -> bool:
        """Take what is newer, publish what the store has not; return False when it has changed meanwhile.

        Raises:
            StoreError: the store does not answer as it should.
            DocumentError: it holds something else than documents.
            OSError: the disk takes nothing.
        """
        page = await self._store.read(DOCUMENTS_KEY)
        override = self._read(page, "override")
        state = self._read(page, "state")
        assert override is None or isinstance(override, OverrideDocument)
        assert state is None or isinstance(state, StateDocument)
        fields: dict[str, bytes | None] = {}
        step = await self._reconciled(override)
        if step.publish is not None:
            fields["override"] = encode_document(step.publish)
        newest = await self._state.newest(state)
        if newest is not None and version_of(newest) > version_of(state):
            fields["state"] = encode_document(newest)
        if not fields:
            return True
        fields[VERSION_FIELD] = secrets.token_hex(8).encode()
        if not await self._store.swap(DOCUMENTS_KEY, page.version, fields, _TTL_S):
            return False
        if step.publish is not None:
            self._published(step.publish)
        return True

    def _read(self, page: Page, name: DocumentName) -> OverrideDocument | StateDocument | None:
        text = page.fields.get(name)
        if text is None:
            return None
        document = decode_document(text, name)
        fault = fault_of(document, LONGEST_OVERRIDE_S, self._clock.wall_s())
        if fault:
            raise DocumentError(f"{name}: {fault}")
        return document

    def _note(self, fault: str | None) -> None:
        """Show a fault; that documents are exchanged no longer, or again, is logged once."""
        if (fault is None) != (self.fault is None):
            if fault is None:
                log.warning("documents are exchanged with the other nodes again")
            else:
                log.error("documents are not exchanged with the other nodes: %s", fault)
        self.fault = fault


class StateFile:
    """The state document of this node on its disk.

    Args:
        read: returns it, None without one; blocks.
        write: replaces it; blocks.
    """

    def __init__(self, read: Callable[[], StateDocument | None], write: Callable[[StateDocument], None]) -> None:
        self._read = read
        self._write = write

    async def newest(self, remote: StateDocument | None) -> StateDocument | None:
        """Return the newer of this node's and the store's, which is on this disk then.

        Raises:
            DocumentError: this node's cannot be read.
            OSError: it cannot be written.
        """
        local = await asyncio.to_thread(self._read)
        if remote is None or version_of(local) >= version_of(remote):
            return local
        await asyncio.to_thread(self._write, remote)
        return remote
