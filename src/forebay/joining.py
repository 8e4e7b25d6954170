"""Requests that need not be run again: the same one of the same user at the same time, and one with a known key.

*Single flight*: who sends what is already being answered gets that answer too. *`Idempotency-Key`*: one key is one
call; who sends it again joins the call while it runs, and gets its answer again afterwards. Both per process.
"""

import asyncio
import hashlib
import secrets
from collections.abc import Iterator

from msgspec import Struct

from forebay.admission.kept import Kept, KeptAnswers, key_of
from forebay.clock import Clock
from forebay.domain import Outcome
from forebay.edge.shared import Over, Said, Shared, Stock
from forebay.errors import Refused
from forebay.policy import Policy
from forebay.ports import Reply
from forebay.recording.record import CallRecord
from forebay.traffic import Call, Request

KEY = b"idempotency-key"
# A call with a key goes on so long for a client that may come again: its retry comes at once from nginx, after
# half a second from the SDKs. Less than the second in which an abandoned engine must be free (case 016).
LINGER_S = 0.8
# A body is hashed in parts of about a millisecond.
SLICE_BYTES = 1_048_576
_DIGEST_BYTES = 20
# These make two requests different beside their bodies: they change what is answered, or for how long one waits.
_TELLING = (
    b"x-user-id", b"x-request-value", b"x-deadline-ms", b"x-stainless-read-timeout", b"accept", b"anthropic-version",
    b"anthropic-beta",
)  # fmt: skip


class _Led(Struct, eq=False):
    """A call that others may join.

    Attributes:
        place: where it is found.
        print: of its request.
        shared: its answer; None while joining is only counted.
        keyed: it has a key.
        record: of the call.
    """

    place: bytes
    print: bytes
    shared: Shared | None
    keyed: bool
    record: CallRecord


class Joining:
    """Knows the calls that may be joined, and the answers that may be given again; follows the policy.

    Attributes:
        joined: requests that were not run, or with `warn` need not have been, by mode.
        replayed: requests that got the kept answer of an earlier one.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # Whoever sees a digest cannot look for the request that has it (T48).
        self._secret = secrets.token_bytes(32)
        self._running: dict[bytes, _Led] = {}
        self._by_call: dict[str, _Led] = {}
        self._stock = Stock()
        self._kept: KeptAnswers[Said] = KeptAnswers()
        self.joined = {"key": 0, "on": 0, "warn": 0}
        self.replayed = 0

    def apply(self, policy: Policy) -> None:
        """Follow a new policy."""
        terms = policy.idempotency
        self._kept.limit(terms.ttl_s, terms.entries, terms.bytes)

    async def enter(
        self, request: Request, call: Call, reply: Reply, record: CallRecord, policy: Policy
    ) -> Reply | None:
        """Find out whether a call must be run.

        Returns:
            Where its answer is to be written, `leave` is due; None when it has got the answer of another one.

        Raises:
            Refused: `invalid_value`, `idempotency_key_reused`, `idempotency_in_progress`, `idempotency_answer_lost`.
        """
        if call.shown is not None:
            # The rest of an answer is nobody else's.
            return reply
        raw = request.headers.get(KEY) if policy.idempotency.ttl_s else None
        if raw is not None:
            return await self._by_key(key_of(raw), request, call, reply, record)
        mode = policy.models[call.model].single_flight
        if mode == "off" or b"x-forebay-resume" in request.headers:
            return reply
        return await self._by_request(mode == "on", request, call, reply, record)

    def leave(self, record: CallRecord) -> None:
        """Take note of the end of a call whose record is closed: others may not join it any more, if they could."""
        led = self._by_call.pop(record.row.call_id, None)
        if led is None:
            return
        if self._running.get(led.place) is led:
            del self._running[led.place]
        shared = led.shared
        if shared is None:
            return
        if led.keyed and record.complete and shared.ended:
            said = shared.said()
            size_bytes = 0 if said is None else len(said.body)
            kept = Kept(record.row.call_id, led.print, self._clock.now_s(), said, size_bytes)
            self._kept.keep(record.row.tenant or "", led.place, kept)
        shared.close()

    def tick(self) -> None:
        """Erase old answers; called once a second."""
        self._kept.tick(self._clock.now_s())

    def counts(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the joined requests by mode."""
        for mode, count in self.joined.items():
            yield (mode,), count

    def shown(self) -> dict[str, int]:
        """Describe what may be joined and what is kept."""
        return {
            "calls": len(self._running),
            "clients": sum(led.shared.clients for led in self._running.values() if led.shared is not None),
            "running_bytes": self._stock.held_bytes,
            "kept_keys": self._kept.entries,
            "kept_bytes": self._kept.held_bytes,
            **{f"joined_{mode}": count for mode, count in self.joined.items()},
            "replayed": self.replayed,
        }

    async def _by_key(self, key: bytes, request: Request, call: Call, reply: Reply, record: CallRecord) -> Reply | None:
        tenant = call.tenant.name
        place = await self._digest(b"", b"key", tenant.encode(), key)
        # Who has not asked for ids must not get an answer that has them.
        print_of = b"print" if call.claim is None else b"print with ids"
        seen = await self._digest(request.body, print_of, call.endpoint.name.encode())
        kept, led = self._kept.get(tenant, place, self._clock.now_s()), self._running.get(place)
        first = kept or led
        if first is None:
            return self._lead(place, seen, call, reply, record, LINGER_S)
        if first.print != seen:
            raise Refused(
                "idempotency_key_reused",
                "this Idempotency-Key was used for another request; use a new one for each request",
                param="Idempotency-Key",
            )
        if led is not None and led.shared is not None:
            if not led.shared.open:
                raise Refused(
                    "idempotency_in_progress", "the request with this Idempotency-Key is still running", retry_after_s=1
                )
            await self._follow(led, led.shared, "key", reply, record)
        elif kept is not None:
            self._replay(kept, reply, record)
        return None

    async def _by_request(
        self, joins: bool, request: Request, call: Call, reply: Reply, record: CallRecord
    ) -> Reply | None:
        headers = request.headers
        place = await self._digest(
            request.body,
            *(b"request", call.tenant.name.encode(), call.endpoint.name.encode(), call.model.encode()),
            # Rules may see more of a request than what is compared here.
            *(call.rule.encode(), b"%d" % (call.max_tokens or 0)),
            *[headers.get(name, b"") for name in _TELLING],
        )
        led = self._running.get(place)
        if led is None:
            return self._lead(place, place, call, reply, record, 0.0) if joins else self._watch(place, reply, record)
        if not joins or led.shared is None:
            self.joined["warn"] += 1
            record.joined(led.record.row.call_id, "warn")
            return reply
        if led.shared.open:
            await self._follow(led, led.shared, "on", reply, record)
            return None
        # Too long to be had from its start, or had by too many: the next ones may have this one's.
        return self._lead(place, place, call, reply, record, 0.0)

    def _watch(self, place: bytes, reply: Reply, record: CallRecord) -> Reply:
        """Remember a call whose like is only counted."""
        self._running[place] = self._by_call[record.row.call_id] = _Led(place, place, None, False, record)
        return reply

    def _lead(self, place: bytes, seen: bytes, call: Call, reply: Reply, record: CallRecord, linger_s: float) -> Shared:
        """Let others join a call: its answer is written for all."""
        shared = Shared(call.endpoint.shape, self._stock, linger_s, asyncio.current_task())
        shared.board(reply)
        self._running[place] = self._by_call[record.row.call_id] = _Led(place, seen, shared, linger_s > 0.0, record)
        return shared

    async def _follow(self, led: _Led, shared: Shared, how: str, reply: Reply, record: CallRecord) -> None:
        """Give a request the answer of a call that runs, and close its record as that call ends."""
        self.joined[how] += 1
        self._note(led.record.row.call_id, how, reply, record)
        over: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        shared.board(reply, over, record.first_token)
        match await over:
            case "left":
                record.close(499, Outcome.CLIENT_CLOSED)
            case "slow":
                record.close(reply.status, Outcome.CLIENT_CLOSED, "client_too_slow")
            case _:
                row = led.record.row
                if led.record.model != record.model:
                    record.answered_by(led.record.model)
                record.close(row.status or 0, row.outcome, row.error_code or "")

    def _replay(self, kept: Kept[Said], reply: Reply, record: CallRecord) -> None:
        """Give a request the kept answer of an earlier one.

        Raises:
            Refused: `idempotency_answer_lost`.
        """
        said = kept.said
        if said is None:
            raise Refused(
                "idempotency_answer_lost",
                "the request with this Idempotency-Key was answered, but the answer was not kept: running it again "
                "would be charged twice; use a new key to do so",
                param="Idempotency-Key",
            )
        self.replayed += 1
        self._note(kept.call_id, "replay", reply, record)
        reply.extra += b"x-forebay-replayed: true\r\n" + said.extra
        reply.head(said.status, said.headers, said.length_bytes)
        record.first_token()
        reply.write(said.body)
        reply.end()
        record.close(said.status, Outcome.OK)

    def _note(self, call_id: str, how: str, reply: Reply, record: CallRecord) -> None:
        """Tell journal and client whose answer it is."""
        record.joined(call_id, how)
        reply.extra += b"x-forebay-joined: %b\r\n" % call_id.encode()

    async def _digest(self, body: bytes, *parts: bytes) -> bytes:
        """Return the keyed digest of a request, or of a name; the loop gets a turn between two parts of a body."""
        mac = hashlib.blake2b(key=self._secret, digest_size=_DIGEST_BYTES)
        for part in parts:
            mac.update(b"%d:%b" % (len(part), part))
        view = memoryview(body)
        for begin in range(0, len(view), SLICE_BYTES):
            if begin:
                await asyncio.sleep(0)
            mac.update(view[begin : begin + SLICE_BYTES])
        return mac.digest()
