"""The exact length of a text, counted by an engine: asked for only where a decision hangs on it.

Of a prompt that is a rule's decision; of an answer that goes on, what is left of its limit, and its usage.

To tokenise a long prompt takes tens of milliseconds, so it never happens on our loop. The engine that would
serve the call has the right tokenizer and template. Whatever goes wrong, there is no count and the estimate
decides: a count is no call, so it takes no permit and does not tell the breaker anything.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Raw, Struct

from forebay.domain import Replica
from forebay.edge.body import Asked
from forebay.policy import Policy
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.traffic import Call
from forebay.wire import splice

TIMEOUT_S = 0.5
MAX_AT_ONCE = 8
MAX_BODY_BYTES = 4 * 1024 * 1024

Post = Callable[[Replica, str, bytes, float], Awaitable[tuple[int, bytes]]]
"""POST a JSON body: (replica, path below its base path, body, timeout in seconds) -> (HTTP status, body).

Raises OSError (TimeoutError is one) when there is no whole HTTP answer in time, whatever the reason.
"""

# Members that say what is tokenised, as `/tokenize` of vLLM and of SGLang takes them too; the prompt first.
_MEMBERS: dict[str, tuple[str, ...]] = {
    "chat": (
        *("messages", "tools", "add_generation_prompt", "continue_final_message", "add_special_tokens"),
        *("chat_template", "chat_template_kwargs"),
    ),
    "completions": ("prompt", "add_special_tokens"),
}
# These are rendered too, but `/tokenize` does not take them: the count would be of another prompt.
_UNCOUNTED = ("documents", "functions")
# Parts that are no text have these in their types. Looked for, not read: a chat may have thousands of parts, and
# a text that speaks of them in quotes only goes uncounted.
_NO_TEXT = re.compile(rb'"(?:image|input_|audio|video|file)')


class _Counted(Struct):
    count: int


class _Rendered(Struct):
    prompt: Raw


class _Tokens(Struct):
    tokens: Raw


_read_counted = msgspec.json.Decoder(_Counted).decode
_read_rendered = msgspec.json.Decoder(_Rendered).decode
_read_tokens = msgspec.json.Decoder(_Tokens).decode


class _NoCount(Exception):
    """The engine did not count."""


class Counter:
    """Has prompts counted, at most 8 at a time, and as many texts of answers; `counted` and so on are of prompts.

    Args:
        fleet: all replicas.
        post: see `Post`.

    Attributes:
        counted: prompts that were counted.
        failed: prompts that an engine was asked about without getting a count.
        skipped: prompts that no engine was asked about: too many at once, too large, or no engine that could.
    """

    def __init__(self, fleet: Fleet, post: Post) -> None:
        self._fleet = fleet
        self._post = post
        self._running = 0
        self._texts = asyncio.Semaphore(MAX_AT_ONCE)
        self.counted = 0
        self.failed = 0
        self.skipped = 0

    async def count(self, call: Call, asked: Asked, policy: Policy) -> int | None:
        """Return the tokens of a call's prompt as its engine counts them; None when there is no count within 0.5 s.

        None at once for more than 8 at a time, bodies above 4 MiB, pictures and sound, several prompts or token
        ids, and engines that cannot tell.
        """
        state = self._engine_for(call, asked, policy)
        if state is None:
            self.skipped += 1
            return None
        self._running += 1
        errands, name, counted = self._fleet.errands, state.replica.name, False
        errands.begin("count", name, state.now_s())
        try:
            async with asyncio.timeout(TIMEOUT_S):
                tokens = await self._ask(state, call, asked, policy)
                counted = True
        except (OSError, _NoCount, msgspec.DecodeError, UnicodeDecodeError):
            self.failed += 1
            return None
        finally:
            self._running -= 1
            errands.ended("count", name, counted, state.now_s())
        self.counted += 1
        return tokens

    async def count_text(self, pool: str, model: bytes, text: str, excluded: frozenset[str]) -> int | None:
        """Return the tokens of a text as an engine counts them; None when there is no count within 0.5 s.

        Of more than 8 at a time the others wait, for that time at most.

        Args:
            pool: whose engines count.
            model: its name there, as JSON.
            text: without any template or special token.
            excluded: names of replicas that are not to be asked.
        """
        state = self._idlest(pool, excluded)
        if state is None or state.pool.engine == "openai":
            return None
        body, errands, name, counted = msgspec.json.encode(text), self._fleet.errands, state.replica.name, False
        try:
            async with asyncio.timeout(TIMEOUT_S), self._texts:
                errands.begin("count", name, state.now_s())
                try:
                    if state.pool.engine == "llamacpp":
                        asked = b'{"model":%b,"add_special":false,"content":%b}' % (model, body)
                        tokens = _length(_read_tokens(await self._answer(state, "/tokenize", asked)).tokens)
                    else:
                        asked = b'{"model":%b,"add_special_tokens":false,"prompt":%b}' % (model, body)
                        tokens = _read_counted(await self._answer(state, "/tokenize", asked)).count
                    counted = tokens > 0
                finally:
                    errands.ended("count", name, counted, state.now_s())
        except (OSError, _NoCount, msgspec.DecodeError, UnicodeDecodeError):
            return None
        return tokens if counted else None

    def _engine_for(self, call: Call, asked: Asked, policy: Policy) -> ReplicaState | None:
        """Return the least busy replica that seems well, if this prompt can be counted and may be now."""
        model = policy.models.get(call.model)
        if model is None or self._running >= MAX_AT_ONCE or not _is_countable(call, asked):
            return None
        engine = policy.pools[model.pool].engine
        if engine == "openai" or (engine != "llamacpp" and not asked.members.values.keys().isdisjoint(_UNCOUNTED)):
            return None
        return self._idlest(model.pool)

    def _idlest(self, pool: str, excluded: frozenset[str] = frozenset()) -> ReplicaState | None:
        """Return the least busy replica of a pool that seems well and is not to be left alone."""
        may = self._fleet.errands.may
        found = [s for s in self._fleet.states(pool) if s.replica.name not in excluded]
        states = [s for s in found if s.usable(s.now_s()) and s.up is not False]
        well = [s for s in states if may("count", s.replica.name, s.now_s())]
        return min((s for s in well if not s.loading), key=lambda s: s.in_flight, default=None)

    async def _ask(self, state: ReplicaState, call: Call, asked: Asked, policy: Policy) -> int:
        """Ask one engine.

        Raises:
            OSError: no answer in time.
            _NoCount: an answer other than 200, or of no tokens.
            msgspec.DecodeError: an answer of another shape.
        """
        model = policy.models[call.model]
        name = msgspec.json.encode(model.upstream_model or model.name)
        if state.pool.engine != "llamacpp":
            body = _object_of(asked, _MEMBERS[call.endpoint.name], name)
            tokens = _read_counted(await self._answer(state, "/tokenize", body)).count
        else:
            if call.endpoint.name == "chat":
                # With all its members, for each may change the rendering: this is how the engine reads a chat itself.
                chat = splice.edit(asked.members, {"model": name})
                text = _read_rendered(await self._answer(state, "/apply-template", chat)).prompt
            else:
                text = asked.members.values["prompt"]
            body = b'{"model":%b,"add_special":true,"content":%b}' % (name, bytes(text))
            tokens = _length(_read_tokens(await self._answer(state, "/tokenize", body)).tokens)
        if tokens <= 0:
            raise _NoCount
        return tokens

    async def _answer(self, state: ReplicaState, path: str, body: bytes) -> bytes:
        status, answer = await self._post(state.replica, path, body, TIMEOUT_S)
        if status != 200:
            raise _NoCount
        return answer


def _is_countable(call: Call, asked: Asked) -> bool:
    """Say whether a prompt is one text or one chat of text only, and not too large."""
    members = asked.members
    name = call.endpoint.name
    if name not in _MEMBERS or _MEMBERS[name][0] not in members.values or len(members.raw) > MAX_BODY_BYTES:
        return False
    if name == "completions":
        return bytes(memoryview(members.values["prompt"])[:1]) == b'"'
    return _NO_TEXT.search(members.raw) is None


def _object_of(asked: Asked, keys: tuple[str, ...], model: bytes) -> bytes:
    """Return an object of some of a body's members, which stay as they are, and the model's name."""
    pieces: list[bytes | Raw] = [b'{"model":', model]
    for key in keys:
        value = asked.members.values.get(key)
        if value is not None and (len(value) != 4 or bytes(value) != b"null"):
            pieces += (b',"%b":' % key.encode(), value)
    # The only copy of what may be megabytes.
    return b"".join((*pieces, b"}"))


def _length(raw: Raw) -> int:
    """Return the length of a flat array of numbers, without building it: there may be a million."""
    text = bytes(raw)
    if not text.startswith(b"["):
        raise _NoCount
    return text.count(b",") + 1 if text[1:-1].strip() else 0
