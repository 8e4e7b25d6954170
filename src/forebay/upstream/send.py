"""One try of one call on one replica: a connection, the request's bytes, the relay, the verdict."""

import asyncio

from forebay.clock import Clock
from forebay.domain import FailureKind, Outcome, Replica
from forebay.errors import Refused
from forebay.ports import Record, Reply
from forebay.traffic import Call, Verdict
from forebay.upstream.connections import OUR_OWN_LACK, Connections
from forebay.upstream.deadlines import Sending
from forebay.upstream.relay import Relay

MAX_HEADS = 1024
_UNREACHABLE = Verdict(False, Outcome.ENGINE_ERROR, FailureKind.CONNECT, message="no connection to the engine")


class Upstream:
    """Runs tries; owns the connections and the clockwork of all running relays.

    A try on a reused connection that dies before a byte of answer is repeated once on a fresh one: the
    engine closed it while our request was on the way. Generation has no side effect but work, so this
    is safe for POST too (decisions/0003).

    Attributes:
        missing_done: complete streams that engines ended without their sentinel, since the start.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self.connections = Connections(loop, clock)
        self.missing_done = 0
        self._relays: set[Relay] = set()
        self._heads: dict[tuple[str, str, str], bytes] = {}

    async def attempt(self, call: Call, replica: Replica, sending: Sending, reply: Reply, record: Record) -> Verdict:
        """Run one try to its end; raise `Refused` when the system has no connection for us, whichever engine it is.

        The record gets usage and times; the reply gets the answer once the engine has begun it.
        """
        head = self._head(call, replica, len(sending.body))
        connection = self.connections.take(replica)
        while True:
            if connection is None:
                try:
                    connection = await self.connections.dial(replica, sending.timeouts.connect_s)
                except OSError as error:
                    if error.errno in OUR_OWN_LACK:
                        raise Refused("too_many_connections", "no descriptor or port left", retry_after_s=1) from None
                    return _UNREACHABLE
            relay = Relay(call, sending, reply, record, self._clock)
            relay.verdict = self._loop.create_future()
            self._relays.add(relay)
            try:
                relay.begin(connection, head)
                verdict = await relay.verdict
            finally:
                self._relays.discard(relay)
                # Cancelled from outside (shutdown): the engine must not go on for nobody.
                relay.client_gone()
            stale = verdict.failure is FailureKind.RESET and connection.reused and not connection.answered
            if not stale or reply.gone:
                self.missing_done += verdict.missing_done
                return verdict
            connection = None

    def tick(self) -> None:
        """Let every running relay check its deadlines; called ten times a second."""
        now_s = self._clock.now_s()
        for relay in list(self._relays):
            relay.tick(now_s)

    def _head(self, call: Call, replica: Replica, body_bytes: int) -> bytes:
        key = (replica.name, replica.authorization, call.endpoint.path)
        head = self._heads.get(key)
        if head is None:
            if len(self._heads) >= MAX_HEADS:
                self._heads.clear()
            head = self._heads[key] = _common_head(replica, call.endpoint.path)
        lines = b"".join([b"%b: %b\r\n" % header for header in call.headers])
        return b"%bX-Request-Id: %b\r\n%bContent-Length: %d\r\n\r\n" % (head, call.call_id.encode(), lines, body_bytes)


def _common_head(replica: Replica, path: str) -> bytes:
    """Write what is the same in every request to one endpoint of one engine."""
    query = f"?{replica.query}" if replica.query else ""
    host = f"[{replica.host}]" if ":" in replica.host else replica.host
    host = host if replica.port == (443 if replica.tls else 80) else f"{host}:{replica.port}"
    lines = [
        f"POST {replica.base_path}{path}{query} HTTP/1.1",
        f"Host: {host}",
        "Content-Type: application/json",
        "Accept-Encoding: identity",
    ]
    if replica.authorization:
        lines.append(f"Authorization: {replica.authorization}")
    return "".join(f"{line}\r\n" for line in lines).encode("latin-1")
