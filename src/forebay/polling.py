"""Asks every engine how it is, every two seconds: shown to operators, and a doubt for the choice.

A poll costs the engine nothing (health paths are those that do not generate) and never stops dispatch:
what stops it is the breaker, which sees real calls.
"""

import asyncio
import logging

from forebay.clock import Clock
from forebay.engines.contract import Engine, Fetch
from forebay.engines.probe import probe
from forebay.engines.registry import ENGINES
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState

log = logging.getLogger(__name__)

PERIOD_S = 2.0
TIMEOUT_S = 1.5
MAX_PROBES = 5
"""Of a replica that came up: vLLM makes its API description when it is first asked, which can take longer than a probe
waits (0.7 s on an idle core, more beside a second engine that starts)."""
_LOADING = b"oading"


class Poller:
    """Polls all replicas of a fleet, at most 32 at a time."""

    def __init__(self, fleet: Fleet, fetch: Fetch, clock: Clock) -> None:
        self._fleet = fleet
        self._fetch = fetch
        self._clock = clock
        self._places = asyncio.Semaphore(32)
        # Probes left for replicas that have not answered all of one; of those in the fleet alone.
        self._unsure: dict[str, int] = {}

    async def run(self) -> None:
        """Poll until cancelled."""
        while True:
            await self.round()
            await asyncio.sleep(PERIOD_S)

    async def round(self) -> None:
        """Poll every replica once."""
        states = list(self._fleet.states())
        names = {state.replica.name for state in states}
        self._unsure = {name: left for name, left in self._unsure.items() if name in names}
        async with asyncio.TaskGroup() as group:
            for state in states:
                group.create_task(self._poll(state))

    async def _poll(self, state: ReplicaState) -> None:
        engine = ENGINES[state.pool.engine]
        async with self._places:
            try:
                status, body = await self._fetch(state.replica, engine.health_path, TIMEOUT_S)
            except OSError:
                self._note(state, up=False, loading=False)
                return
            if status == 200 and state.pool.engine != "openai":
                await self._learn(state)
            self._note(state, up=status == 200, loading=status == 503 and _is_loading(body))
            if status == 200 and engine.telemetry_path is not None:
                await self._read(state, engine, engine.telemetry_path)

    async def _learn(self, state: ReplicaState) -> None:
        """Probe a replica each time it comes up, for it may be another build than before, until all is answered."""
        name = state.replica.name
        left = MAX_PROBES if state.up is not True else self._unsure.get(name, 0)
        if not left:
            return
        found = await probe(state.replica, self._fetch, TIMEOUT_S)
        state.token_ids = found.token_ids and state.pool.engine == "vllm"
        state.context_tokens = found.max_model_len
        self._unsure[name] = 0 if found.complete else left - 1

    async def _read(self, state: ReplicaState, engine: Engine, path: str) -> None:
        errands, name, now_s = self._fleet.errands, state.replica.name, self._clock.now_s()
        if not errands.may("telemetry", name, now_s):
            return
        errands.begin("telemetry", name, now_s)
        well = False
        try:
            status, page = await self._fetch(state.replica, path, TIMEOUT_S)
            if status == 200:
                telemetry = engine.read_telemetry(page)
                state.telemetry, state.polled_at_s = telemetry, self._clock.now_s()
                state.noted(telemetry.slots.value, telemetry.kv_tokens.value)
                well = True
        except (OSError, ValueError) as error:
            log.debug("no telemetry from %s: %s", state.replica.name, type(error).__name__)
        finally:
            errands.ended("telemetry", name, well, now_s)

    def _note(self, state: ReplicaState, *, up: bool, loading: bool) -> None:
        if state.up != up:
            word = "up" if up else "not up yet" if state.up is None else "down"
            log.info("replica %s of pool %s is %s", state.replica.name, state.pool.name, word)
        state.up = up
        state.loading = loading


def _is_loading(body: bytes) -> bool:
    """Say whether a health page speaks of loading; one that says nothing at all may mean it too."""
    return not body.strip() or _LOADING in body
