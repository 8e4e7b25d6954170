"""A forwarder in front of an engine that keeps what it was sent, byte for byte."""

import socket
import threading
from types import TracebackType
from typing import Self

Address = tuple[str, int]


class Tap:
    """Forwards connections to an address; a context manager.

    Attributes:
        port: that it listens on.
    """

    def __init__(self, to: Address) -> None:
        self._to = to
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._received: list[bytearray] = []
        self._open: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        # A listener that another thread waits on wakes up by being shut down, not by being closed.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for one in self._open:
            one.close()

    def take(self) -> bytes:
        """The calls that the engine was sent since this was last asked; health polls are left out."""
        with self._lock:
            taken = b"".join(sent for sent in self._received if sent.startswith(b"POST "))
            for sent in self._received:
                sent.clear()
            return taken

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            engine = socket.create_connection(self._to)
            self._open += [client, engine]
            with self._lock:
                self._received.append(sent := bytearray())
            for source, sink, kept in ((client, engine, sent), (engine, client, bytearray())):
                threading.Thread(target=self._pump, args=(source, sink, kept), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        try:
            while data := source.recv(65_536):
                with self._lock:
                    kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            source.close()
            sink.close()
