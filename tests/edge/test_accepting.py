"""Two that accept from one socket: each gets its part, and one that stops leaves all to the other."""

import asyncio
import socket

from forebay.edge.accepting import Acceptor, delay_s


class Side:
    """Accepts and counts."""

    def __init__(self, listener: socket.socket, others: list["Side"]) -> None:
        self.transports: list[asyncio.BaseTransport] = []
        self._others = others
        others.append(self)
        self.acceptor = Acceptor(asyncio.get_running_loop(), [listener], self._protocol, self._delay)

    def _delay(self, coming: int) -> float:
        mean = sum(len(side.transports) for side in self._others) / len(self._others)
        return delay_s(len(self.transports) + coming, mean)

    def _protocol(self) -> asyncio.Protocol:
        side = self

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                side.transports.append(transport)

        return Counted()

    def close(self) -> None:
        self.acceptor.stop()
        for transport in self.transports:
            transport.close()


async def reached(sides: list[Side], count: int) -> None:
    async with asyncio.timeout(30):
        while sum(len(side.transports) for side in sides) < count:
            await asyncio.sleep(0.001)


def test_connections_are_shared_out() -> None:
    async def main() -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        # Each has a descriptor of its own, as processes do; the queue is one.
        copies = [listener.dup(), listener.dup()]
        sides: list[Side] = []
        first, second = (Side(copy, sides) for copy in copies)
        for side in sides:
            side.acceptor.start()
        clients = []
        for number in range(40):
            clients.append(await asyncio.open_connection(*listener.getsockname()))
            await reached(sides, number + 1)
        assert abs(len(first.transports) - len(second.transports)) <= 4, [len(side.transports) for side in sides]
        first.acceptor.stop()
        before = len(first.transports)
        for number in range(5):
            clients.append(await asyncio.open_connection(*listener.getsockname()))
            await reached(sides, 41 + number)
        assert len(first.transports) == before
        first.acceptor.start()
        second.acceptor.stop()
        clients.append(await asyncio.open_connection(*listener.getsockname()))
        await reached(sides, 46)
        assert len(first.transports) == before + 1
        for _, writer in clients:
            writer.close()
        for side in sides:
            side.close()
        for each in (*copies, listener):
            each.close()
        await asyncio.sleep(0.01)

    asyncio.run(main())
