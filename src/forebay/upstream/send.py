"""One try of one call on one replica: a connection, the request's bytes, the relay, the verdict."""

import asyncio

from msgspec import Struct

from forebay.clock import Clock
from forebay.domain import FailureKind, Outcome, Replica
from forebay.ports import Call, Record, Reply, Verdict
from forebay.upstream.connections import Connection, Connections
from forebay.upstream.relay import Relay, Terms

# Below this size head and body are joined into one write; above, copying costs more than a second part.
JOIN_BYTES = 65_536
_UNREACHABLE = "no connection to the engine"


class Try(Struct, frozen=True):
    """What one try sends, and where."""

    replica: Replica
    pool: str
    body: bytes
    terms: Terms


class Upstream:
    """Runs tries; owns the connections and the clockwork of all running relays.

    A try on a reused connection that dies before a byte of answer is repeated once on a fresh one: the
    engine closed it while our request was on the way. Generation has no side effect but work, so this
    is safe for POST too (decisions/0003).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self.connections = Connections(loop, clock)
        self._relays: set[Relay] = set()
        self.missing_done = 0
        self._heads: dict[tuple[str, str, str], bytes] = {}

    async def attempt(self, call: Call, tried: Try, reply: Reply, record: Record) -> Verdict:
        """Run one try to its end.

        The record gets usage and times; the reply gets the answer once the engine has begun it.
        """
        parts = self._parts(call, tried)
        connection = self.connections.take(tried.replica)
        if connection is not None:
            verdict = await self._run(call, tried, connection, parts, reply, record)
            stale = verdict.failure is FailureKind.RESET and not connection.answered
            if not stale or reply.gone:
                return verdict
        try:
            connection = await self.connections.dial(tried.replica, tried.terms.timeouts.connect_s)
        except (OSError, TimeoutError):
            return Verdict(False, Outcome.ENGINE_ERROR, FailureKind.CONNECT, message=_UNREACHABLE)
        return await self._run(call, tried, connection, parts, reply, record)

    def tick(self) -> None:
        """Let every running relay check its deadlines; called ten times a second."""
        now_s = self._clock.now_s()
        for relay in list(self._relays):
            relay.tick(now_s)

    async def _run(
        self, call: Call, tried: Try, connection: Connection, parts: list[bytes], reply: Reply, record: Record
    ) -> Verdict:
        done: asyncio.Future[Verdict] = self._loop.create_future()

        def deliver(verdict: Verdict) -> None:
            if not done.done():
                done.set_result(verdict)

        relay = Relay(call, tried.terms, reply, record, self._clock, deliver)
        self._relays.add(relay)
        try:
            relay.begin(connection, parts)
            verdict = await done
            self.missing_done += verdict.missing_done
            return verdict
        finally:
            self._relays.discard(relay)
            # Cancelled from outside (shutdown): the engine must not go on for nobody.
            relay.client_gone()

    def _parts(self, call: Call, tried: Try) -> list[bytes]:
        replica = tried.replica
        key = (replica.name, replica.authorization, call.endpoint.path)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= 1024:
                self._heads.clear()
            head = self._heads[key] = _head(replica, call.endpoint.path)
        lines = b"".join(b"%b: %b\r\n" % header for header in call.headers)
        head = b"%bX-Request-Id: %b\r\n%bContent-Length: %d\r\n\r\n" % (
            head,
            call.call_id.encode(),
            lines,
            len(tried.body),
        )
        return [head + tried.body] if len(tried.body) < JOIN_BYTES else [head, tried.body]


def _head(replica: Replica, path: str) -> bytes:
    query = f"?{replica.query}" if replica.query else ""
    default_port = 443 if replica.tls else 80
    host = f"[{replica.host}]" if ":" in replica.host else replica.host
    host = host if replica.port == default_port else f"{host}:{replica.port}"
    lines = [
        f"POST {replica.base_path}{path}{query} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept-Encoding: identity",
    ]
    if replica.authorization:
        lines.append(f"Authorization: {replica.authorization}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
