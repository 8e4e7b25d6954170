"""The store on Redis (or Valkey), with redis-py. Its package is an extra, loaded only when there is a `store.url`."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from forebay.store.contract import MAX_BYTES, MAX_FIELDS, VERSION_FIELD, Page, StoreError

TIMEOUT_S: Final = 0.25
"""Of one command, connecting included."""

# The store judges the size before it sends: a hash of a gigabyte must not reach this process.
_READ: Final = """
if redis.call('HLEN', KEYS[1]) > tonumber(ARGV[1]) then return redis.error_reply('TOOBIG fields') end
local all = redis.call('HGETALL', KEYS[1])
local size = 0
for _, text in ipairs(all) do size = size + #text end
if size > tonumber(ARGV[2]) then return redis.error_reply('TOOBIG bytes') end
return {redis.call('TIME'), all}
"""
_SWAP: Final = """
local version = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if version ~= ARGV[2] then return 0 end
local sets = tonumber(ARGV[4])
for i = 5, 4 + 2 * sets, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
for i = 5 + 2 * sets, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[3])
return 1
"""
_PUT: Final = """
local sets = tonumber(ARGV[2])
for i = 3, 2 + 2 * sets, 2 do redis.call('HSET', KEYS[1], ARGV[i], ARGV[i + 1]) end
for i = 3 + 2 * sets, #ARGV do redis.call('HDEL', KEYS[1], ARGV[i]) end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return 1
"""
# First words of Redis's errors that say what is wrong without repeating data.
_TOLD: Final = frozenset(
    "WRONGTYPE TOOBIG OOM READONLY LOADING NOPERM NOAUTH WRONGPASS BUSY MISCONF NOREPLICAS".split()
)


class RedisStore:
    """Hashes on one Redis, over one connection that is opened when it is needed.

    Args:
        url: `redis://`, `rediss://` or `unix://`, with user and password as needed. It is never shown.
    """

    def __init__(self, url: str) -> None:
        import redis.asyncio  # noqa: PLC0415 - an optional extra
        from redis.asyncio.retry import Retry  # noqa: PLC0415
        from redis.backoff import NoBackoff  # noqa: PLC0415

        self._errors = redis.exceptions
        # One try, for a caller that comes back soon anyway.
        self._client = redis.asyncio.Redis.from_url(
            url,
            socket_timeout=TIMEOUT_S,
            socket_connect_timeout=TIMEOUT_S,
            retry=Retry(NoBackoff(), 0),
            max_connections=2,
            protocol=2,
        )

    async def read(self, key: str) -> Page:
        """See `Store.read`."""
        answer = await self._run(_READ, key, MAX_FIELDS, MAX_BYTES)
        try:
            (seconds, micros), flat = answer
            names = [name.decode() for name in flat[::2]]
            fields = dict(zip(names, flat[1::2], strict=True))
            return Page(int(seconds) * 1000 + int(micros) // 1000, fields)
        except (TypeError, ValueError, AttributeError):
            raise StoreError("answers something that is no hash") from None

    async def swap(self, key: str, seen: bytes, fields: Mapping[str, bytes | None], ttl_s: int) -> bool:
        """See `Store.swap`."""
        answer = await self._run(_SWAP, key, VERSION_FIELD, seen, ttl_s, *_changes(fields))
        return bool(answer == 1)

    async def put(self, key: str, fields: Mapping[str, bytes | None], ttl_s: int) -> None:
        """See `Store.put`."""
        await self._run(_PUT, key, ttl_s, *_changes(fields))

    async def close(self) -> None:
        """See `Store.close`."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._client.aclose()
        except (OSError, TimeoutError, self._errors.RedisError):
            return

    async def _run(self, script: str, key: str, *arguments: str | bytes | int) -> Any:
        """Run a script on one key.

        Raises:
            StoreError: no good answer within `TIMEOUT_S`.
        """
        errors = self._errors
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await self._client.eval(script, 1, key, *arguments)
            _heed_cancellation()
            return answer
        except (TimeoutError, errors.TimeoutError):
            reason = f"no answer within {TIMEOUT_S * 1000:.0f} ms"
        except errors.AuthenticationError:
            reason = "it refuses the user or password"
        except errors.ResponseError as error:
            reason = _word_of(str(error))
        except (OSError, errors.RedisError) as error:
            reason = f"no connection ({type(error).__name__})"
        except (ValueError, TypeError, IndexError, RecursionError):
            reason = "what answers is no Redis"
        # Whatever is still under way on the connection must not be taken for the answer to the next command.
        await self._drop()
        _heed_cancellation()
        raise StoreError(reason) from None

    async def _drop(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                await self._client.connection_pool.disconnect()
        except (OSError, TimeoutError, self._errors.RedisError):
            return


def _heed_cancellation() -> None:
    """Be cancelled, if that was asked for and lost on the way.

    redis-py sends with `asyncio.wait_for`, which on Python 3.11 swallows a cancellation that comes in the moment in
    which its work ends (https://github.com/python/cpython/issues/86296); the task would never end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _changes(fields: Mapping[str, bytes | None]) -> list[str | bytes | int]:
    """Return how many fields are set, the pairs, and the names of those that go."""
    sets = [part for name, value in fields.items() if value is not None for part in (name, value)]
    return [len(sets) // 2, *sets, *(name for name, value in fields.items() if value is None)]


def _word_of(error: str) -> str:
    """Return an error of Redis without the data that it may repeat."""
    word = next((word for word in error.replace(":", " ").split() if word in _TOLD), "")
    return f"it answers {word}" if word else "it answers with an error"
