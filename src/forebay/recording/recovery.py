"""Calls that a dead process left open get their `close` line, with the outcome `lost`.

The line is appended to the dead process's own latest segment, so that doing it twice changes nothing. The
work comes in small steps for the writer thread, which goes on writing in between.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from forebay.domain import Outcome
from forebay.recording.files import Files
from forebay.recording.lines import CloseLine, OpenLine

_READ_BYTES = 131_072


class _Line(Struct):
    kind: str
    call_id: str


class Recovery:
    """Closes what dead processes left open.

    Args:
        folder: of the journal.
        files: the operating system.
        budget_bytes: how much is read of each dead process, newest segments first, in whole segments.
        wall_s: written into the lines as their time.
    """

    def __init__(self, folder: Path, files: Files, budget_bytes: int, wall_s: float) -> None:
        self._folder = folder
        self._files = files
        self._budget_bytes = budget_bytes
        self._wall_s = wall_s
        self._line = msgspec.json.Decoder(_Line)
        self._open_line = msgspec.json.Decoder(OpenLine)
        self.closed = 0

    def steps(self, own_tag: str, inherited: list[Path]) -> Iterator[None]:
        """Do the work, some milliseconds for each step.

        Args:
            own_tag: of this process, which holds its lock already.
            inherited: segments of a dead process that had the same tag.

        Raises:
            OSError: the folder or a segment cannot be read or written; a later start tries again.
        """
        if inherited:
            yield from self._close_orphans(inherited)
        for lock in sorted(self._folder.glob("*.lock")):
            tag = lock.stem
            if tag != own_tag:
                yield from self._recover(lock, sorted(self._folder.glob(f"*-{tag}.jsonl")))

    def _recover(self, lock: Path, segments: list[Path]) -> Iterator[None]:
        fd = self._files.open(lock)
        try:
            if self._files.lock(fd) and self._files.is_linked(fd, lock):
                if segments:
                    yield from self._close_orphans(segments)
                lock.unlink(missing_ok=True)
        finally:
            self._files.close(fd)

    def _close_orphans(self, segments: list[Path]) -> Iterator[None]:
        """Find the calls without a `close` line, newest segment first, and write one for each."""
        opened: dict[str, bytes] = {}
        closed: set[str] = set()
        read_bytes = 0
        for path in reversed(segments):
            if read_bytes >= self._budget_bytes:
                break
            for lines in self._lines_of(path):
                read_bytes += sum(map(len, lines))
                self._match(lines, opened, closed)
                yield
        if opened:
            self._append(segments[-1], opened.values())
            self.closed += len(opened)

    def _lines_of(self, path: Path) -> Iterator[list[bytes]]:
        fd = self._files.open(path)
        try:
            offset_bytes = 0
            rest = b""
            while data := self._files.read(fd, _READ_BYTES, offset_bytes):
                offset_bytes += len(data)
                *lines, rest = (rest + data).split(b"\n")
                yield lines
        finally:
            self._files.close(fd)

    def _match(self, lines: list[bytes], opened: dict[str, bytes], closed: set[str]) -> None:
        for text in lines:
            try:
                line = self._line.decode(text)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue  # damaged: there is nothing in it to close
            if line.kind == "close":
                if opened.pop(line.call_id, None) is None:
                    closed.add(line.call_id)
            elif line.kind == "open" and line.call_id not in closed:
                opened[line.call_id] = text

    def _append(self, path: Path, opened: Iterable[bytes]) -> None:
        data = memoryview(b"".join(self._closing(text) for text in opened))
        fd = self._files.open(path)
        try:
            self._files.truncate(fd, self._whole_bytes(fd))
            while data:
                data = data[self._files.write(fd, data) :]
        finally:
            self._files.close(fd)

    def _whole_bytes(self, fd: int) -> int:
        """Return the size of a segment without the line in which its writer died."""
        end = self._files.size_bytes(fd)
        while end:
            begin = max(0, end - _READ_BYTES)
            place = self._files.read(fd, end - begin, begin).rfind(b"\n")
            if place >= 0:
                return begin + place + 1
            end = begin
        return 0

    def _closing(self, text: bytes) -> bytes:
        try:
            opened = self._open_line.decode(text)
        except msgspec.DecodeError:
            return b""  # of another schema
        closing = CloseLine(
            ts=self._wall_s,
            call_id=opened.call_id,
            request_id=opened.request_id,
            endpoint=opened.endpoint,
            client_address=opened.client_address,
            tenant=opened.tenant,
            model=opened.model,
            stream=opened.stream,
            pool=opened.pool,
            replica=opened.replica,
            outcome=Outcome.LOST,
            input_length=opened.input_estimate_tokens,
            prompt_template_id=opened.prompt_template_id,
        )
        return msgspec.json.encode(closing) + b"\n"


def recover(folder: Path, files: Files, budget_bytes: int, wall_s: float) -> int:
    """Close the calls that dead processes left open, all at once; return how many there were.

    Raises:
        OSError: the folder or a segment cannot be read or written.
    """
    recovery = Recovery(folder, files, budget_bytes, wall_s)
    for _ in recovery.steps("", []):
        pass
    return recovery.closed
