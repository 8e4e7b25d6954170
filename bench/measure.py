"""Reading processes from /proc, and the little statistics that the verdicts need."""

import os
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Stat(NamedTuple):
    """CPU time of one process, in clock ticks; children are those that ended and were waited for."""

    user: int
    system: int
    children_user: int
    children_system: int

    @property
    def total_s(self) -> float:
        """Return all of it in seconds."""
        return sum(self) / TICKS_PER_S


class Spread(NamedTuple):
    """A median with the smallest and largest value behind it."""

    median: float
    low: float
    high: float


def parse_stat(text: str) -> Stat:
    """Read utime, stime, cutime and cstime from a /proc/PID/stat line.

    The command name may hold spaces and parentheses, so fields are counted from its last one.

    Raises:
        ValueError: the line is not of that form.
    """
    _, closed, rest = text.rpartition(")")
    fields = rest.split()
    if not closed or len(fields) < 15:
        raise ValueError(f"not a /proc/PID/stat line: {text[:60]!r}")
    return Stat(*(int(field) for field in fields[11:15]))


def parse_vm_rss_kib(status: str) -> int:
    """Read VmRSS, in KiB, from the text of /proc/PID/status.

    Raises:
        ValueError: there is none (a kernel thread or a process that ended).
    """
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise ValueError("no VmRSS")


def parse_listeners(table: str, port: int) -> set[str]:
    """Return the socket inodes that listen on a port, from the text of /proc/net/tcp."""
    inodes = set()
    for line in table.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) == port:
            inodes.add(fields[9])
    return inodes


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that processes have used, with all their threads and ended children.

    The live part is read from the process's CPU clock, in nanoseconds, since the ticks of /proc are
    10 ms, which is 3 % of a short run. Source: clock_getcpuclockid(3), whose result for a process is
    `~pid << 3 | CPUCLOCK_SCHED` (Linux, include/linux/posix-timers.h).
    """
    total = 0.0
    for pid in pids:
        stat = parse_stat((PROC / str(pid) / "stat").read_text())
        total += time.clock_gettime((~pid << 3) | 2)
        total += (stat.children_user + stat.children_system) / TICKS_PER_S
    return total


def rss_mib(pids: Iterable[int]) -> float:
    """Return the resident memory, in MiB, of the largest of some processes."""
    return max(parse_vm_rss_kib((PROC / str(pid) / "status").read_text()) for pid in pids) / 1024


def machine_busy_s() -> float:
    """Return the CPU seconds that the whole machine has been busy, time stolen by its host included."""
    fields = (PROC / "stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, _idle, _iowait, irq, softirq, steal = (int(f) for f in fields[:8])
    return (user + nice + system + irq + softirq + steal) / TICKS_PER_S


def listening_pids(port: int, root: int) -> list[int]:
    """Return the processes that hold the listening socket of a port, among a process and its descendants."""
    wanted = {f"socket:[{inode}]" for inode in parse_listeners((PROC / "net" / "tcp").read_text(), port)}
    return sorted(pid for pid in descendants(root) if wanted & open_files(pid))


def descendants(root: int) -> set[int]:
    """Return a process and all its living descendants."""
    children: dict[int, list[int]] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it ended meanwhile
                continue
            children.setdefault(parent, []).append(int(folder.name))
    found, todo = set(), [root]
    while todo:
        pid = todo.pop()
        found.add(pid)
        todo += children.get(pid, [])
    return found


def open_files(pid: int) -> set[str]:
    """Return what the descriptors of a process point to; empty when it ended or is not ours."""
    found = set()
    try:
        for fd in (PROC / str(pid) / "fd").iterdir():
            with suppress(FileNotFoundError):  # closed while we looked
                found.add(os.readlink(fd))
    except OSError:
        return set()
    return found


def pin(pid: int, core: int) -> None:
    """Bind all threads of a process to one core."""
    for task in (PROC / str(pid) / "task").iterdir():
        os.sched_setaffinity(int(task.name), {core})


def percentile(values: list[float], share: float) -> float:
    """Return the value at a share (0..1) of the sorted list, by nearest rank, as the load maker does.

    Raises:
        ValueError: there are no values.
    """
    if not values:
        raise ValueError("no values")
    return sorted(values)[int(share * (len(values) - 1) + 0.5)]


def spread(values: Sequence[float]) -> Spread:
    """Return median, smallest and largest.

    Raises:
        statistics.StatisticsError: there are no values.
    """
    return Spread(statistics.median(values), min(values), max(values))
