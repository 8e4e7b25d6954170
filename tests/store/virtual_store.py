"""A store in memory on a clock of its own, which can be away, lose answers and apply commands late."""

from collections.abc import Callable, Mapping

from forebay.clock import ManualClock
from forebay.store.contract import VERSION_FIELD, Page, StoreError


class VirtualStore:
    """What one node sees of the hashes that all share.

    Args:
        hashes: by key; the same for all nodes.
        clock: of the store.

    Attributes:
        away: nothing is answered, and nothing changes.
        deaf: changes are done, but no answer says so.
        late: commands that were sent while it was away; `catch_up` does them.
    """

    def __init__(self, hashes: dict[str, dict[str, bytes]], clock: ManualClock) -> None:
        self._hashes = hashes
        self._clock = clock
        self.away = False
        self.deaf = False
        self.late: list[Callable[[], bool]] = []

    async def read(self, key: str) -> Page:
        if self.away:
            raise StoreError("no answer")
        return Page(int(self._clock.wall_s() * 1000), dict(self._hashes.get(key, {})))

    async def swap(self, key: str, seen: bytes, fields: Mapping[str, bytes | None], ttl_s: int) -> bool:
        given = dict(fields)

        def do() -> bool:
            page = self._hashes.setdefault(key, {})
            if page.get(VERSION_FIELD, b"") != seen:
                return False
            for name, value in given.items():
                if value is None:
                    page.pop(name, None)
                else:
                    page[name] = value
            return True

        if self.away:
            self.late.append(do)
            raise StoreError("no answer")
        done = do()
        if self.deaf:
            raise StoreError("no answer")
        return done

    async def put(self, key: str, fields: Mapping[str, bytes | None], ttl_s: int) -> None:
        if self.away:
            raise StoreError("no answer")
        page = self._hashes.setdefault(key, {})
        for name, value in fields.items():
            if value is None:
                page.pop(name, None)
            else:
                page[name] = value

    async def close(self) -> None:
        return None

    def catch_up(self) -> None:
        """Do what was sent in the meantime, as a server does that was only stopped."""
        late, self.late = self.late, []
        for do in late:
            do()
