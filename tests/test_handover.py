"""The hand-over of listening sockets: who has them when, and what a process that fails leaves as it was."""

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay import handover
from forebay.handover import FORMAT, HandOverError, Hello, Offer, Released, Spent, Taken, take_over

ADDRESS = "127.0.0.1:7080"


class Old:
    """A running process, as far as a hand-over goes."""

    def __init__(self, folder: Path, hello: Hello | None = None) -> None:
        self.hello = hello or Hello(FORMAT, ADDRESS, 1, ("aa-",))
        self.folder = folder
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.released = 0
        self.offer = Offer(
            asyncio.get_running_loop(), lambda: self.hello, lambda: [self.listener.fileno()], self._release
        )
        self.offer.start(folder / "run")

    async def _release(self) -> Released:
        self.released += 1
        return Released(12.5)

    async def asked(self) -> Taken | None:
        """What a new process gets; it asks from another thread, as it has a loop of its own."""
        return await asyncio.to_thread(take_over, self.folder)

    def stop(self) -> None:
        self.offer.stop()
        self.listener.close()


def run(tmp_path: Path, check: Callable[[Old], Coroutine[Any, Any, None]], hello: Hello | None = None) -> None:
    async def main() -> None:
        old = Old(tmp_path, hello)
        try:
            await check(old)
        finally:
            old.stop()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_the_sockets_are_the_same_and_the_word_is_kept(tmp_path: Path) -> None:
    async def check(old: Old) -> None:
        loop = asyncio.get_running_loop()
        taken = await old.asked()
        assert taken is not None and not old.offer.taken
        assert not any(received.get_inheritable() for received in taken.sockets), "children would hold the address"
        assert taken.hello == old.hello
        (listener,) = taken.listening_on(ADDRESS)
        assert listener.getsockname() == old.listener.getsockname()
        assert taken.listening_on("127.0.0.1:1") == []
        assert await taken.ready(loop) == Released(12.5)
        assert old.offer.taken and old.released == 1
        old.listener.close()
        # Whoever is left takes what comes.
        with socket.create_connection(listener.getsockname(), timeout=5):
            listener.accept()[0].close()
        old.offer.tell(Spent(3, {"a": (7, 8)}))
        assert await taken.ended(loop) == Spent(3, {"a": (7, 8)})
        listener.close()

    run(tmp_path, check)


def test_one_that_ends_before_it_is_ready_changes_nothing(tmp_path: Path) -> None:
    async def check(old: Old) -> None:
        for _ in range(3):
            taken = await old.asked()
            assert taken is not None
            taken.close()
        taken = await old.asked()
        assert taken is not None and not old.offer.taken and not old.released
        taken.close()

    run(tmp_path, check)


def test_an_old_one_that_dies_has_let_go_of_all(tmp_path: Path) -> None:
    async def check(old: Old) -> None:
        loop = asyncio.get_running_loop()
        taken = await old.asked()
        assert taken is not None
        await taken.ready(loop)
        old.offer.tell(None)
        assert await taken.ended(loop) == Spent()
        taken.close()

    run(tmp_path, check)


def test_nobody_there_is_no_error(tmp_path: Path) -> None:
    assert take_over(tmp_path) is None
    (tmp_path / "run").mkdir()
    handover.bound_unix_socket(tmp_path / "run" / handover.SOCKET_NAME).close()
    assert take_over(tmp_path) is None


def test_another_format_is_refused(tmp_path: Path) -> None:
    async def check(old: Old) -> None:
        with pytest.raises(HandOverError, match="in another way"):
            await old.asked()

    run(tmp_path, check, Hello(FORMAT + 1, ADDRESS, 1))


def test_one_that_does_not_answer_is_told_from_one_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handover, "ANSWER_S", 0.2)
    (tmp_path / "run").mkdir()
    with handover.bound_unix_socket(tmp_path / "run" / handover.SOCKET_NAME) as listener:
        listener.listen(1)
        with pytest.raises(HandOverError, match="does not hand over"):
            take_over(tmp_path)


def test_a_word_that_is_none_counts_as_let_go(tmp_path: Path) -> None:
    """The old one dies between its sockets and its word."""
    (tmp_path / "run").mkdir()
    with handover.bound_unix_socket(tmp_path / "run" / handover.SOCKET_NAME) as listener:
        listener.listen(1)

        def old() -> None:
            link, _ = listener.accept()
            link.sendall(msgspec.json.encode(Hello(FORMAT, ADDRESS, 1)) + b"\n")
            link.recv(16)
            link.close()

        thread = threading.Thread(target=old)
        thread.start()

        async def new() -> None:
            loop = asyncio.get_running_loop()
            taken = await asyncio.to_thread(take_over, tmp_path)
            assert taken is not None and taken.sockets == []
            assert await taken.ready(loop) == Released()
            assert await taken.ended(loop) is None

        asyncio.run(new())
        thread.join(5)


def test_one_that_hangs_does_not_keep_others_from_taking_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "READY_S", 0.05)

    async def check(old: Old) -> None:
        hanging, next_one = await old.asked(), await old.asked()
        assert hanging is not None and next_one is not None
        await next_one.ready(asyncio.get_running_loop())
        assert old.offer.taken and old.released == 1
        old.offer.tell(None)
        hanging.close()
        next_one.close()

    run(tmp_path, check)
