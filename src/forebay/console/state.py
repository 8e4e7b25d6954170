"""What the control plane works with, and the actions that change it, one at a time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from forebay.clock import Clock
from forebay.config.documents import Override, OverrideDocument, read_document, write_document
from forebay.console.dataplane import DataPlane
from forebay.console.guard import Listen
from forebay.console.instep import InStep, StateFile
from forebay.console.overrides import Change, Overrides, Version
from forebay.console.reconcile import Step, step
from forebay.console.timeline import ActionKind, Timeline
from forebay.store.contract import Store

EXPIRY_PERIOD_S = 1.0
OWN_NAME = "forebay"


class ConsoleState:
    """Everything the routes work with.

    Args:
        clock: monotonic and wall time.
        data_dir: holds `policy/override.json` and `timeline.jsonl`.
        data_plane: the client of the data plane's socket.
        listen: address of the admin port.
        token: that of the admin port.
        config_file: the file that the data plane was started with, for people to see.

    Raises:
        OSError: the data folder cannot be read.
    """

    def __init__(
        self,
        clock: Clock,
        data_dir: Path,
        data_plane: DataPlane,
        *,
        listen: Listen,
        token: str,
        config_file: str | None = None,
    ) -> None:
        self.clock = clock
        self.data_plane = data_plane
        self.listen = listen
        self.token = token
        self.config_file = config_file
        self.started_s = clock.now_s()
        self.started_wall_s = clock.wall_s()
        self.timeline = Timeline(data_dir / "timeline.jsonl", clock)
        self.overrides = Overrides(data_dir / "policy", clock)
        self._expiry_fault: str | None = None
        self.store_fault: str | None = None
        self._writing = asyncio.Lock()
        self._agreed = self.overrides.document
        self._instep: InStep | None = None
        self._folder = data_dir / "policy"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Note the start and take out overrides whose end has come, until the context is left."""
        await asyncio.to_thread(self.timeline.append, "console.started", OWN_NAME)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._expire_for_ever(), name="expire overrides")]
            if self._instep is not None:
                tasks.append(group.create_task(self._instep.run(), name="keep in step"))
            try:
                yield
            finally:
                for task in tasks:
                    task.cancel()

    def meet(self, store: Store) -> None:
        """Keep the documents in step with other nodes; called before `running`."""
        folder = self._folder
        state = StateFile(lambda: read_document(folder, "state"), lambda d: write_document(folder, "state", d))
        self._instep = InStep(store, self.clock, self._reconcile, self._agree, state)

    def faults(self) -> list[str]:
        """Return one line for each file that could not be read or written."""
        shared = None if self._instep is None or self._instep.fault is None else f"other nodes: {self._instep.fault}"
        found = (self.overrides.fault, self._expiry_fault, self.timeline.fault, shared, self.store_fault)
        return [fault for fault in found if fault]

    async def override(self, change: Change, ttl_s: int, *, reason: str, by: str) -> Override:
        """Let a change count for a time; return the override when it is on disk.

        Args:
            change: what it does.
            ttl_s: seconds until it ends by itself.
            reason: for the timeline.
            by: who asks.

        Raises:
            TooManyOverridesError: there is no room for another one.
            OSError: the document cannot be written; nothing has changed.
        """
        async with self._writing:
            held = await self._held_version()
            made = await asyncio.to_thread(self.overrides.add, change, ttl_s, reason=reason, by=by, held=held)
            await self._note("override.created", made, by)
        self._wake()
        return made

    async def end(self, id: str, *, by: str) -> Override | None:
        """End an override now; return it, or None when it is not active.

        Raises:
            OSError: the document cannot be written; nothing has changed.
        """
        async with self._writing:
            found = await asyncio.to_thread(self.overrides.remove, id, await self._held_version())
            if found:
                await self._note("override.deleted", found, by)
        self._wake()
        return found

    async def expire(self) -> None:
        """Take out the overrides whose end has come; a disk that takes nothing is tried again later."""
        if not self.overrides.has_ended():
            return
        async with self._writing:
            try:
                ended = await asyncio.to_thread(self.overrides.expire, await self._held_version())
            except OSError as error:
                self._expiry_fault = f"override.json: {error.strerror}; ended overrides are still in it"
                return
            self._expiry_fault = None
            for override in ended:
                await self._note("override.expired", override, OWN_NAME)

    async def _reconcile(self, remote: OverrideDocument | None) -> Step:
        """Bring the override document of this node and that of the store together; see `reconcile.step`.

        Raises:
            DocumentError: what comes out would be refused by the data plane.
            OSError: it cannot be written.
        """
        async with self._writing:
            local = self.overrides.document
            if remote == local:
                self._agreed = local
                return Step()
            made = step(self._agreed, local, remote, await self._held_version(), self.clock.wall_s())
            if made.write is not None:
                await asyncio.to_thread(self.overrides.take, made.write)
                await self._tell_difference(local, made.write)
                if made.publish is None:
                    self._agreed = made.write
        return made

    def _agree(self, document: OverrideDocument) -> None:
        self._agreed = document

    async def _tell_difference(self, old: OverrideDocument, new: OverrideDocument) -> None:
        """Note in the timeline what was changed on other nodes."""
        wall_s = self.clock.wall_s()
        before, after = ({entry.id: entry for entry in d.active(wall_s)} for d in (old, new))
        for id in after.keys() - before.keys():
            await self._note("override.created", after[id], f"{after[id].by}, on another node")
        for id in before.keys() - after.keys():
            await self._note("override.deleted", before[id], "another node")

    def _wake(self) -> None:
        if self._instep is not None:
            self._instep.wake()

    async def _expire_for_ever(self) -> None:
        while True:
            await asyncio.sleep(EXPIRY_PERIOD_S)
            await self.expire()

    async def _held_version(self) -> Version:
        return (await self.data_plane.view()).held("override")

    async def _note(self, kind: ActionKind, override: Override, by: str) -> None:
        await asyncio.to_thread(self.timeline.append, kind, by, override)
