"""The store on a real Redis: stopped, frozen, restarted empty, locked, full of garbage; and things that are none."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from gateway_process import free_port
from real_redis import RealRedis

from forebay.store.contract import MAX_FIELDS, StoreError
from forebay.store.on_redis import TIMEOUT_S, RedisStore

pytestmark = pytest.mark.integration
KEY = "forebay:test"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealRedis]:
    running = RealRedis(tmp_path)
    yield running
    running.stop()


def run(url: str, work: Callable[[RedisStore], Coroutine[Any, Any, Any]]) -> Any:
    async def whole() -> Any:
        store = RedisStore(url)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(whole())


def fault(url: str, work: Callable[[RedisStore], Coroutine[Any, Any, Any]] = lambda store: store.read(KEY)) -> str:
    with pytest.raises(StoreError) as caught:
        run(url, work)
    return str(caught.value)


def test_a_hash_changes_once_and_as_a_whole(server: RealRedis) -> None:
    async def work(store: RedisStore) -> None:
        empty = await store.read(KEY)
        assert (empty.fields, empty.version) == ({}, b"")
        assert abs(empty.now_ms / 1000 - time.time()) < 60
        assert await store.swap(KEY, empty.version, {":version": b"1", "a": b"x", "b": b"\x00\xff"}, 60)
        assert not await store.swap(KEY, empty.version, {":version": b"2", "a": b"y"}, 60)
        assert (await store.read(KEY)).fields == {":version": b"1", "a": b"x", "b": b"\x00\xff"}
        assert await store.swap(KEY, b"1", {":version": b"2", "a": None}, 60)
        assert (await store.read(KEY)).fields == {":version": b"2", "b": b"\x00\xff"}
        await store.put(KEY, {"c": b"3", "b": None}, 60)
        assert (await store.read(KEY)).fields == {":version": b"2", "c": b"3"}

    run(server.url, work)
    with closing(server.client()) as client:
        assert 0 < client.ttl(KEY) <= 60


def test_nobody_there(server: RealRedis) -> None:
    server.stop()
    assert fault(server.url).startswith("no connection")


def test_it_comes_back_empty_on_the_same_store(server: RealRedis) -> None:
    async def work(store: RedisStore) -> None:
        assert await store.swap(KEY, b"", {":version": b"1"}, 60)
        server.stop()
        with pytest.raises(StoreError):
            await store.read(KEY)
        await asyncio.to_thread(server.start)
        assert (await store.read(KEY)).fields == {}

    run(server.url, work)


def test_frozen_it_costs_a_bounded_time_and_an_old_answer_is_never_taken_for_a_new_one(server: RealRedis) -> None:
    async def work(store: RedisStore) -> None:
        assert await store.swap(KEY, b"", {":version": b"1", "a": b"old"}, 60)
        server.freeze()
        for _ in range(3):
            with pytest.raises(StoreError, match="no answer within 250 ms"):
                async with asyncio.timeout(20 * TIMEOUT_S):
                    await store.swap(KEY, b"1", {":version": b"2", "a": b"new"}, 60)
        server.thaw()
        assert (await store.read(KEY)).fields in (
            {":version": b"1", "a": b"old"},
            {":version": b"2", "a": b"new"},
        )

    run(server.url, work)


def test_a_task_that_is_cancelled_ends_at_whatever_moment(server: RealRedis) -> None:
    """`asyncio.wait_for` of Python 3.11, with which redis-py sends, swallows a cancellation in one of these moments."""

    async def work(store: RedisStore) -> None:
        async def on_and_on() -> None:
            while True:
                with suppress(StoreError):
                    await store.read(KEY)

        for turns in range(300):
            task = asyncio.create_task(on_and_on())
            for _ in range(turns % 100):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait([task], timeout=60)
            assert done and task.cancelled(), f"it goes on when cancelled after {turns % 100} turns of the loop"

    run(server.url, work)


def test_a_key_of_another_kind(server: RealRedis) -> None:
    with closing(server.client()) as client:
        client.set(KEY, "a text with CANARY in it")
    assert fault(server.url) == "it answers WRONGTYPE"


def test_a_hash_of_too_many_fields_is_not_sent(server: RealRedis) -> None:
    with closing(server.client()) as client:
        client.hset(KEY, mapping={str(number): "x" for number in range(MAX_FIELDS + 1)})
    assert fault(server.url) == "it answers TOOBIG"


def test_a_hash_of_too_many_bytes_is_not_sent(server: RealRedis) -> None:
    with closing(server.client()) as client:
        client.hset(KEY, "a", "x" * (9 * 1024 * 1024))
    assert fault(server.url) == "it answers TOOBIG"


def test_fields_that_are_no_text(server: RealRedis) -> None:
    with closing(server.client()) as client:
        client.hset(KEY, b"\xff", b"x")
    assert fault(server.url) == "answers something that is no hash"


def test_a_wrong_password_is_said_and_not_shown(tmp_path: Path) -> None:
    server = RealRedis(tmp_path, password="right-CANARY")
    try:
        assert run(server.url, lambda store: store.read(KEY)).fields == {}
        said = fault(server.url.replace("right-CANARY", "wrong-CANARY"))
        assert "password" in said and "CANARY" not in said
        assert "CANARY" not in fault(server.url.replace(":right-CANARY@", ""))
    finally:
        server.stop()


def test_read_only(server: RealRedis) -> None:
    with closing(server.client()) as client:
        client.execute_command("REPLICAOF", "127.0.0.1", str(free_port()))
    said = fault(server.url, lambda store: store.swap(KEY, b"", {":version": b"1"}, 60))
    assert said.split()[-1] in ("READONLY", "error")


@pytest.mark.parametrize(
    "answer",
    [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x00" * 100, b"*1000000000\r\n", b"$9999999999\r\nx", b":\r\n"],
)
def test_something_that_is_no_redis(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    peer, _ = listener.accept()
                except OSError:
                    return
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)
                    time.sleep(0.05)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            assert fault(f"redis://127.0.0.1:{listener.getsockname()[1]}/0")
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)
