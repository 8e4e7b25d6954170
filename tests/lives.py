"""Processes on a data folder, one after the other: what each spends counts in its quota and stands in the journal."""

import asyncio
import os
from pathlib import Path

import msgspec

from forebay.admission.quota import Quota, Reservation
from forebay.admission.spending import price_of
from forebay.clock import ManualClock
from forebay.domain import Outcome, Spend, Tenant
from forebay.ledger import Counted, MonthLedger
from forebay.policy import Policy, Price
from forebay.recording.lines import CloseLine

PRICES = {"m": Price(input=2.0, output=6.0, cached_input=0.5)}


class Life:
    """One process on a data folder: calls count in its quota and leave a line in the journal."""

    def __init__(self, folder: Path, clock: ManualClock, run_id: str = "aa", tenants: str = "ab") -> None:
        self.clock = clock
        self.run_id = run_id
        self.tenants = {name: Tenant(name, tokens=1_000_000) for name in tenants}
        self.quota = Quota()
        self.quota.apply(Policy({}, {}, {name.encode(): tenant for name, tenant in self.tenants.items()}))
        self.ledger = MonthLedger(self.quota, clock, folder, asyncio.get_running_loop())
        self._segment = folder / "journal" / f"20270115-000000-{run_id}.jsonl"
        self._calls = 0

    async def start(self) -> None:
        await self.ledger.start((Counted((f"{self.run_id}-",)),), PRICES)

    def call(self, tenant: str = "a", prompt: int = 10, output: int = 5, cached: int | None = None) -> None:
        """Let a call begin and end, as the pipeline does: its line first, then its settlement, at one moment."""
        now_s, wall_s = self.clock.now_s(), self.clock.wall_s()
        held = self.quota.reserve(self.tenants[tenant], Spend(20), now_s, wall_s)
        assert isinstance(held, Reservation)
        self.write(tenant, prompt, output, cached)
        money = price_of(PRICES["m"], prompt, cached, output)
        self.quota.settle(held, Spend(prompt + output, money), now_s, wall_s)

    def write(self, tenant: str | None, prompt: int | None, output: int | None, cached: int | None = None) -> None:
        """Write the line of a call; without an output it is one that no engine has worked on."""
        self._calls += 1
        line = CloseLine(self.clock.wall_s(), f"{self.run_id}-{self._calls:x}", "r", "chat", "x", tenant, "m")
        line.input_length, line.output_length, line.cached_tokens = prompt, output, cached
        line.total_tokens = None if prompt is None or output is None else prompt + output
        line.outcome = Outcome.OK
        self.append(msgspec.json.encode(line) + b"\n")

    def append(self, data: bytes) -> None:
        self._segment.parent.mkdir(exist_ok=True)
        with self._segment.open("ab") as file:
            file.write(data)
        os.utime(self._segment, (self.clock.wall_s(),) * 2)

    def spent(self, tenant: str = "a") -> tuple[int, float]:
        spent = self.quota.spent(self.clock.now_s(), self.clock.wall_s()).get(tenant, Spend(0))
        return spent.tokens, spent.money


def kept_in(folder: Path) -> Path:
    return folder / "run" / "month.json"
