"""What was done, by whom and why: one bounded list of actions, kept in a file of JSON lines."""

import os
from collections import deque
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from forebay.clock import Clock, timestamp
from forebay.config.documents import Override

KEPT = 1000  # actions
FILE_LINES = 2 * KEPT  # then the file is written anew with the last KEPT
READ_BYTES = 4 * 1024 * 1024  # of the file's end, at start

ActionKind = Literal["console.started", "override.created", "override.deleted", "override.expired"]


class Action(Struct, frozen=True):
    """One line of the timeline.

    Attributes:
        at: RFC 3339.
        by: a person as named in the request, or `forebay`.
        target: what it was done to; empty when the kind says it.
        id: of the override, or empty.
        change: what the override does: its kind, or empty.
        tokens: of the longest input that is still served, where long inputs are refused.
        level: of the ladder, where one was set.
    """

    at: str
    kind: ActionKind
    by: str
    target: str = ""
    reason: str = ""
    id: str = ""
    change: str = ""
    tokens: int | None = None
    level: int | None = None


class Timeline:
    """The last `KEPT` actions, in memory and on disk.

    A disk that takes no more lines costs the lines on disk, never the action: `fault` says so.

    Args:
        path: of the file; its folder exists.
        clock: for `at`.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self.fault: str | None = None
        tail = _tail(path)
        lines = tail.splitlines()
        self._actions = deque((a for line in lines if (a := _action(line))), maxlen=KEPT)
        self._file_lines = len(lines)
        self._torn = not tail.endswith(b"\n") and bool(tail)

    def append(self, kind: ActionKind, by: str, override: Override | None = None) -> None:
        """Add an action that has been done, to an override if there is one."""
        at = timestamp(self._clock.wall_s())
        action = Action(at, kind, by)
        if override is not None:
            o = override
            action = Action(at, kind, by, o.target, o.reason, o.id, o.kind, o.tokens, o.level)
        self._actions.append(action)
        try:
            if self._file_lines >= FILE_LINES:
                self._rewrite()
            else:
                self._write(action)
            self.fault = None
            self._torn = False
        except OSError as error:
            self.fault = f"{self._path.name}: {error.strerror}"
            self._torn = True

    def latest(self, limit: int) -> list[Action]:
        """Return the last actions, newest first.

        Args:
            limit: how many at most; 1 to `KEPT`.
        """
        return list(self._actions)[: -limit - 1 : -1]

    def _write(self, action: Action) -> None:
        start = b"\n" if self._torn else b""
        with open(self._path, "ab", opener=_private) as file:
            file.write(start + msgspec.json.encode(action) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._file_lines += 1

    def _rewrite(self) -> None:
        draft = self._path.with_suffix(".new")
        with open(draft, "wb", opener=_private) as file:
            file.writelines(msgspec.json.encode(action) + b"\n" for action in self._actions)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self._path)
        self._file_lines = len(self._actions)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _tail(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BYTES))
            return file.read(READ_BYTES)
    except FileNotFoundError:
        return b""


def _action(line: bytes) -> Action | None:
    """Return the action of a line; None when it is torn or not ours."""
    try:
        return msgspec.json.decode(line, type=Action)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
