"""What `bench.faults` breaks in a running Forebay, each with the proof that it was broken."""

import json
import operator
import os
import shutil
import signal
import struct
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench import engines
from bench.peers import BUILD, HOST, CannotRun, Process
from forebay.config.documents import OverrideDocument, StateDocument, write_document

DISK = "size=64m"
HOUR_S = 3600
FIRST = (OverrideDocument(epoch=9, seq=9, schema=1), StateDocument(epoch=9, seq=9, schema=1))
OLDER = (OverrideDocument(epoch=9, seq=1, schema=1), StateDocument(epoch=9, seq=1, schema=1))


class Victim(NamedTuple):
    """A running gateway and what a fault may touch.

    Attributes:
        folder: with its configuration and data.
        clock: file with the shift of its wall clock.
        admin: address of the admin port; kept, since a fault may break the configuration.
    """

    gateway: Process
    store: Process
    folder: Path
    clock: Path
    admin: str

    @property
    def journal(self) -> Path:
        """The folder of the journal."""
        return self.folder / "data" / "journal"

    def status(self) -> dict[str, Any]:
        """Return the admin status; empty while nobody answers."""
        try:
            token = (self.folder / "data" / "admin-token").read_text().strip()
            headers = {"Authorization": f"Bearer {token}"}
            request = urllib.request.Request(f"http://{self.admin}/api/status", headers=headers)
            with urllib.request.urlopen(request, timeout=5) as answer:
                return dict(json.load(answer))
        except OSError:
            return {}

    def control_plane(self) -> int:
        """Return the process id of the control plane; 0 while it does not answer."""
        children = self.status().get("children") or ()
        return next((int(c["pid"] or 0) for c in children if c["name"] == "control plane"), 0)

    def metrics(self) -> dict[str, float]:
        """Return all samples."""
        return engines.samples(engines.fetch(self.gateway.port, "/metrics").decode())

    def store_up(self) -> bool:
        """Say whether the gateway holds the store for reachable."""
        return self.metrics()["forebay_store_up"] == 1

    def journal_state(self) -> str:
        """Return what the metric says of the journal."""
        prefix = 'forebay_journal_state{state="'
        shown = [name for name, on in self.metrics().items() if name.startswith(prefix) and on]
        return shown[0][len(prefix) : -2] if shown else ""


Fault = Callable[[Victim, float], None]


def proved(check: Callable[[], bool], what: str, within_s: float = 15.0) -> None:
    """Wait until a check comes true.

    Raises:
        CannotRun: it does not.
    """
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            raise CannotRun(what)
        time.sleep(0.1)


def nothing(victim: Victim, seconds: float) -> None:
    """Leave it alone."""
    time.sleep(seconds)


def control_plane_killed(victim: Victim, seconds: float) -> None:
    """Kill the control plane, which must come back."""
    before = victim.control_plane()
    proved(partial(bool, before), "the control plane does not answer", 0)  # a signal to 0 would end ourselves
    os.kill(before, signal.SIGKILL)
    time.sleep(seconds)
    proved(lambda: victim.control_plane() not in (0, before), "the control plane did not come back")


def store_stopped(victim: Victim, seconds: float) -> None:
    """End Redis, then start it again."""
    victim.store.stop()
    try:
        time.sleep(seconds)
        seen = victim.store_up()
    finally:
        victim.store.start()
    store_noticed(victim, seen)


def store_frozen(victim: Victim, seconds: float) -> None:
    """Let Redis hang."""
    pids = victim.store.pids()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        time.sleep(seconds)
        seen = victim.store_up()
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
    store_noticed(victim, seen)


def store_noticed(victim: Victim, seen: bool) -> None:
    """See that the gateway knew that the store was gone, and that it is back."""
    proved(lambda: not seen, "the store was gone, and its metric said that it was up", 0)
    proved(victim.store_up, "the gateway did not find the store again")


def disk_full(victim: Victim, seconds: float) -> None:
    """Leave no byte on the disk of the data folder, which is of 64 MB."""
    filler = victim.folder / "data" / "filler"
    try:
        with filler.open("wb", buffering=0) as file:
            for block in (1 << 20, 1 << 12, 1):
                with suppress(OSError):  # no space
                    while file.write(bytes(block)):
                        pass
        time.sleep(seconds)
        seen = victim.journal_state()
    finally:
        filler.unlink()
    proved(lambda: seen == "full", f"the journal was {seen!r} on a full disk", 0)
    proved(lambda: victim.journal_state() == "ok", "the journal did not recover")


def journal_read_only(victim: Victim, seconds: float) -> None:
    """Put a file system that cannot be written over the journal's folder."""
    with mounted(victim.journal, "ro,size=1m"):
        time.sleep(seconds)
        seen = victim.journal_state()
    proved(lambda: seen == "failing", f"the journal was {seen!r} on a read-only file system", 0)
    proved(lambda: victim.journal_state() == "ok", "the journal did not recover")


def documents(victim: Victim, seconds: float) -> None:
    """Half of the time a corrupt configuration and corrupt documents, the other half older documents."""
    folder = victim.folder / "data" / "policy"
    files = [victim.folder / "forebay.yaml", folder / "override.json", folder / "state.json"]
    good = [path.read_bytes() for path in files]
    tries = {
        "corrupt": (b"pools: [", b"\xff\x00{", b'{"epoch":9,'),
        "older": (good[0], *map(msgspec.json.encode, OLDER)),
    }
    missing: dict[str, set[str]] = {}
    try:
        for how, bad in tries.items():
            missing[how] = not_refused(victim, how, dict(zip(files, bad, strict=True)), seconds / 2)
    finally:
        for path, data in zip(files, good, strict=True):
            path.write_bytes(data)
    for how, names in missing.items():
        proved(partial(operator.not_, names), f"{how} documents were not refused as such: {sorted(names)}", 0)


def not_refused(victim: Victim, how: str, bad: Mapping[Path, bytes], seconds: float) -> set[str]:
    """Keep bad files where they are, though the control plane may replace them by what the store has.

    Returns:
        The documents that the data plane has not refused for that reason.
    """
    left, until_s = {"override", "state"}, time.monotonic() + seconds
    while (rest_s := until_s - time.monotonic()) > 0:
        for path, data in bad.items():
            if path.read_bytes() != data:
                path.write_bytes(data)
        time.sleep(min(0.5, rest_s))
        shown = victim.status().get("documents", {}) if left else {}
        reasons = {name: shown.get(name, {}).get("reason") for name in left}
        left -= {name for name, why in reasons.items() if why and ("older than" in why) == (how == "older")}
    return left


def clock_ahead(victim: Victim, seconds: float) -> None:
    """Set the wall clock an hour ahead."""
    clock_shifted(victim, seconds, HOUR_S)


def clock_back(victim: Victim, seconds: float) -> None:
    """Set the wall clock an hour back."""
    clock_shifted(victim, seconds, -HOUR_S)


def clock_shifted(victim: Victim, seconds: float, shift_s: int) -> None:
    """Shift the wall clock of the gateway, and see in its journal that it has."""
    set_clock(victim.clock, shift_s)
    time.sleep(seconds)
    last = max(victim.journal.glob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    stamp_s = json.loads(last.read_bytes().split(b"\n")[-2])["ts"]
    off_s = stamp_s - time.time() - shift_s
    set_clock(victim.clock, 0)
    proved(lambda: abs(off_s) < HOUR_S / 2, f"the clock was not shifted: off by {off_s:.0f} s", 0)


def data_plane_killed(victim: Victim, seconds: float) -> None:
    """Kill the data plane; the caller starts it again."""
    for pid in victim.gateway.pids():
        os.kill(pid, signal.SIGKILL)


BASELINE = "nothing"
KILL = "data plane kill -9"
ON_A_SMALL_DISK = "disk of 64 MB full"
FAULTS: Mapping[str, Fault] = {
    BASELINE: nothing,
    "control plane kill -9": control_plane_killed,
    "redis stopped": store_stopped,
    "redis frozen": store_frozen,
    ON_A_SMALL_DISK: disk_full,
    "journal read-only": journal_read_only,
    "documents corrupt, older": documents,
    "clock +1 h": clock_ahead,
    "clock -1 h": clock_back,
    KILL: data_plane_killed,
}


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[None]:
    """Mount an empty file system in memory on a folder.

    Raises:
        CannotRun: that is not permitted here.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"needs root: {done.stderr.partition(chr(10))[0]}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=False)


def set_clock(path: Path, shift_s: int) -> None:
    """Write the shift in place, since the file is mapped."""
    with path.open("r+b" if path.exists() else "w+b") as file:
        file.write(struct.pack("=q", shift_s))


def clock_shim() -> Path:
    """Compile what shifts a clock; return the library.

    Raises:
        CannotRun: there is no compiler, or it fails.
    """
    compiler, out = shutil.which("cc"), BUILD / "clock_shift.so"
    if compiler is None:
        raise CannotRun("no C compiler: apt-get install gcc libc6-dev")
    BUILD.mkdir(exist_ok=True)
    source = Path(__file__).with_name("clock_shift.c")
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(out), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"cannot compile {source.name}: {done.stderr[-500:]}")
    return out


def prepare(victim: Victim) -> None:
    """Write the documents that are in force before a fault, and wait for the control plane."""
    proved(lambda: bool(victim.control_plane()), "the control plane does not answer", 30)
    folder = victim.folder / "data" / "policy"
    write_document(folder, "override", FIRST[0])
    write_document(folder, "state", FIRST[1])


def redis(folder: Path, port: int, cores: frozenset[int]) -> Process:
    """Return a Redis that keeps nothing.

    Raises:
        CannotRun: it is not installed.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise CannotRun("redis-server is not installed (Debian: apt-get install redis-server)")
    options = ["--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(folder)]
    return Process("redis", [program, *options], port, folder, cores)
