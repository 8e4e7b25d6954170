import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from forebay.clock import ManualClock, SystemClock
from forebay.processes import LINE_BYTES, LINES_PER_S, RESTART_LOG, Backoff, Child, ChildState, LineRelay

FAST = Backoff(first_s=0.02, limit_s=0.05, healthy_s=30.0)
WAIT_FOR_EOF = "import sys; print('ready', flush=True); sys.stdin.read()"
DEAF = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); sys.stdin.read()"

Scenario = Callable[[], Awaitable[None]]


def python(code: str) -> list[str]:
    return [sys.executable, "-S", "-c", code]


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not check():
            await asyncio.sleep(0.005)


def alive(pid: int) -> bool:
    """Whether a process runs: a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Iterator[Callable[[Scenario], None]]:
    """Runs a scenario on one of the two loops."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def start(scenario: Scenario) -> None:
        async def bounded() -> None:
            async with asyncio.timeout(30):
                await scenario()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(bounded())

    yield start


# --- the back-off decision ---


def test_back_off_doubles_to_its_limit() -> None:
    waits: list[float] = []
    previous: float | None = None
    for _ in range(9):
        previous = Backoff().delay_s(previous, ran_s=0.1)
        waits.append(previous)
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_back_off_starts_again_after_a_healthy_run() -> None:
    assert Backoff().delay_s(16.0, ran_s=30.0) == 0.5
    assert Backoff().delay_s(16.0, ran_s=29.9) == 30.0


@given(st.lists(st.floats(min_value=0, max_value=1e6), max_size=50))
def test_back_off_stays_in_its_bounds(runs: list[float]) -> None:
    previous: float | None = None
    for ran_s in runs:
        following = Backoff().delay_s(previous, ran_s)
        assert 0.5 <= following <= 30.0
        assert ran_s >= 30.0 or previous is None or following >= previous
        previous = following


# --- what the child prints ---


def relay() -> tuple[LineRelay, list[str], ManualClock]:
    lines: list[str] = []
    clock = ManualClock()
    return LineRelay(lines.append, clock), lines, clock


@given(st.text(st.characters(codec="utf-8", categories=["L", "N"]), max_size=60), st.integers(0, 200))
def test_lines_do_not_depend_on_how_bytes_arrive(text: str, cut: int) -> None:
    lines, sink, _ = relay()
    data = f"{text}\n\nlast".encode()
    lines.feed(data[:cut])
    lines.feed(data[cut:])
    lines.close()
    assert sink == [*([text] if text else []), "last"]


def test_a_long_line_is_cut_and_the_next_one_is_whole() -> None:
    lines, sink, _ = relay()
    for _ in range(5):
        lines.feed(b"x" * LINE_BYTES)
    lines.feed(b"\nnext\n")
    assert sink == ["x" * LINE_BYTES + " [cut]", "next"]


def test_control_characters_do_not_reach_the_log() -> None:
    lines, sink, _ = relay()
    lines.feed(b"a\x1b[31mb\x00c\r\n\xff\n")
    assert sink == ["a [31mb c", "\ufffd"]


def test_lines_over_the_rate_are_dropped_and_counted() -> None:
    lines, sink, clock = relay()
    lines.feed(b"line\n" * (LINES_PER_S + 7))
    assert len(sink) == LINES_PER_S
    clock.advance(1.0)
    lines.feed(b"after\n")
    assert sink[LINES_PER_S:] == ["[7 lines dropped]", "after"]


# --- real processes ---


@pytest.mark.integration
def test_a_killed_child_is_started_again(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        lines: list[str] = []
        child = Child("c", python(WAIT_FOR_EOF), SystemClock(), on_line=lines.append, backoff=FAST)
        await child.start()
        await until(lambda: lines == ["ready"])
        first = child.report()
        assert first.state is ChildState.RUNNING
        assert first.pid is not None
        os.kill(first.pid, signal.SIGKILL)
        await until(lambda: lines == ["ready", "ready"])
        second = child.report()
        assert (second.restarts, second.last_exit) == (1, "signal SIGKILL")
        assert second.pid not in (None, first.pid)
        assert [(entry.exit, entry.delay_s) for entry in second.log] == [("signal SIGKILL", 0.02)]
        await child.stop(5.0)
        assert child.report().state is ChildState.STOPPED
        assert child.report().last_exit == "signal SIGTERM"
        assert child.report().restarts == 1

    run(scenario)


@pytest.mark.integration
def test_a_missing_command_is_retried_and_the_log_is_bounded(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        tiny = Backoff(first_s=0.001, limit_s=0.001)
        child = Child("c", ["/nonexistent/program"], SystemClock(), backoff=tiny)
        await child.start()
        await until(lambda: child.report().restarts > RESTART_LOG + 2)
        report = child.report()
        assert report.last_exit == "cannot start: No such file or directory"
        assert report.pid is None
        assert len(report.log) == RESTART_LOG
        await child.stop(1.0)
        assert child.report().state is ChildState.STOPPED

    run(scenario)


@pytest.mark.integration
def test_last_words_are_relayed_and_exit_is_named(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        lines: list[str] = []
        code = "import sys; sys.stderr.write('no port'); sys.exit(3)"
        child = Child("c", python(code), SystemClock(), on_line=lines.append)
        await child.start()
        await until(lambda: child.report().state is ChildState.BACKOFF)
        assert lines == ["no port"]
        assert child.report().last_exit == "exit 3"
        assert child.report().log[0].delay_s == 0.5
        await child.stop(1.0)

    run(scenario)


@pytest.mark.integration
def test_a_deaf_child_is_killed_after_the_grace(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        lines: list[str] = []
        child = Child("c", python(DEAF), SystemClock(), on_line=lines.append)
        await child.start()
        await until(lambda: lines == ["ready"])
        pid = child.report().pid
        await child.stop(0.1)
        assert child.report().last_exit == "signal SIGKILL"
        assert pid is not None
        assert not alive(pid)

    run(scenario)


@pytest.mark.integration
def test_a_grandchild_that_holds_the_output_neither_survives_nor_blocks(run: Callable[[Scenario], None]) -> None:
    code = (
        "import os, sys, time\n"
        "pid = os.fork()\n"
        "if pid: print(pid, flush=True); sys.exit(4)\n"
        "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    )

    async def scenario() -> None:
        lines: list[str] = []
        child = Child("c", python(code), SystemClock(), on_line=lines.append)
        await child.start()
        await until(lambda: child.report().last_exit == "exit 4")
        await until(lambda: not alive(int(lines[0])))
        await child.stop(1.0)

    run(scenario)


@pytest.mark.integration
def test_child_has_its_own_group_lower_priority_and_the_given_environment(run: Callable[[Scenario], None]) -> None:
    code = (
        "import os, sys, time\n"
        "while os.getpriority(os.PRIO_PROCESS, 0) != 10: time.sleep(0.01)\n"
        "print(os.getpgrp() == os.getpid(), os.environ['FOREBAY_TEST'], flush=True); sys.stdin.read()"
    )

    async def scenario() -> None:
        lines: list[str] = []
        child = Child("c", python(code), SystemClock(), {"FOREBAY_TEST": "yes"}, nice=10, on_line=lines.append)
        await child.start()
        await until(lambda: bool(lines))
        assert lines == ["True yes"]
        await child.stop(5.0)

    run(scenario)


@pytest.mark.integration
def test_stop_right_after_start_leaves_no_process(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        child = Child("c", python(WAIT_FOR_EOF), SystemClock())
        await child.start()
        await asyncio.sleep(0)
        await child.stop(5.0)
        report = child.report()
        assert (report.state, report.pid) == (ChildState.STOPPED, None)

    run(scenario)


@pytest.mark.integration
def test_a_cancelled_stop_still_kills(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        lines: list[str] = []
        child = Child("c", python(DEAF), SystemClock(), on_line=lines.append)
        await child.start()
        await until(lambda: lines == ["ready"])
        pid = child.report().pid
        assert pid is not None
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(child.stop(60.0), 0.05)
        await until(lambda: not alive(pid))
        # The loop hears of the death a moment after the system; closed before, it would complain of an open transport.
        await asyncio.sleep(1.0)

    run(scenario)


@pytest.mark.integration
def test_a_child_is_supervised_once_at_a_time(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        child = Child("c", python(WAIT_FOR_EOF), SystemClock())
        await child.stop(1.0)
        await child.start()
        with pytest.raises(RuntimeError, match="already supervised"):
            await child.start()
        await child.stop(5.0)
        await child.start()
        await until(lambda: child.report().state is ChildState.RUNNING)
        await child.stop(5.0)

    run(scenario)


def test_a_child_gets_descriptors_and_lines_and_ends_by_another_signal(run: Callable[[Scenario], None]) -> None:
    async def scenario() -> None:
        reading, writing = os.pipe()
        code = f"""
import os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(7))
print('ready', flush=True)
for line in sys.stdin:
    os.write({writing}, line.encode())
"""
        lines: list[str] = []
        child = Child("c", python(code), SystemClock(), on_line=lines.append, backoff=FAST, pass_fds=[writing])
        child.tell(b"nobody runs yet\n")
        await child.start()
        await until(lambda: lines == ["ready"])
        child.tell(b"hello\n")
        assert await asyncio.to_thread(os.read, reading, 100) == b"hello\n"
        await child.stop(5.0, signal.SIGUSR1)
        assert child.report().last_exit == "exit 7"
        child.launch_with(python("print('another', flush=True); import sys; sys.stdin.read()"), [])
        await child.start()
        await until(lambda: lines == ["ready", "another"])
        await child.stop(5.0)
        for descriptor in (reading, writing):
            os.close(descriptor)

    run(scenario)
