"""The pool of connections."""

from upstream.engine_side import REPLICA, Line

from forebay.clock import ManualClock
from forebay.domain import Replica
from forebay.upstream.connections import IDLE_EXPIRY_S, MAX_IDLE_PER_REPLICA, Connections


def pool() -> tuple[Connections, ManualClock]:
    clock = ManualClock(100.0)
    return Connections(None, clock), clock  # type: ignore[arg-type]


def test_the_last_one_used_is_used_first() -> None:
    connections, clock = pool()
    lines = [Line(connections, clock) for _ in range(3)]
    for line in lines:
        connections.give_back(line.connection)
    assert [connections.take(REPLICA) for _ in range(4)] == [*(line.connection for line in reversed(lines)), None]


def test_each_replica_has_its_own() -> None:
    connections, clock = pool()
    line = Line(connections, clock)
    connections.give_back(line.connection)
    assert connections.take(Replica("other:1", "other", 1)) is None
    assert connections.take(REPLICA) is line.connection


def test_an_idle_connection_expires_before_an_engine_would_close_it() -> None:
    connections, clock = pool()
    line = Line(connections, clock)
    connections.give_back(line.connection)
    clock.advance(IDLE_EXPIRY_S)
    assert connections.take(REPLICA) is line.connection
    connections.give_back(line.connection)
    clock.advance(IDLE_EXPIRY_S + 0.01)
    assert connections.take(REPLICA) is None
    assert line.transport.closing
    assert IDLE_EXPIRY_S < 5.0


def test_a_sweep_closes_what_has_expired_and_nothing_else() -> None:
    connections, clock = pool()
    old, young = Line(connections, clock), Line(connections, clock)
    connections.give_back(old.connection)
    clock.advance(IDLE_EXPIRY_S)
    connections.give_back(young.connection)
    clock.advance(0.01)
    connections.sweep()
    assert (old.transport.closing, young.transport.closing) == (True, False)
    old.lose()
    assert connections.take(REPLICA) is young.connection


def test_a_connection_that_ended_while_idle_is_not_handed_out() -> None:
    connections, clock = pool()
    gone, closing, well = (Line(connections, clock) for _ in range(3))
    for line in (well, closing, gone):
        connections.give_back(line.connection)
    gone.lose()
    closing.transport.closing = True
    assert connections.take(REPLICA) is well.connection
    assert connections.take(REPLICA) is None


def test_idle_connections_are_bounded() -> None:
    connections, clock = pool()
    lines = [Line(connections, clock) for _ in range(MAX_IDLE_PER_REPLICA + 2)]
    for line in lines:
        connections.give_back(line.connection)
    assert [line.transport.closing for line in lines[-2:]] == [True, True]
    assert not any(line.transport.closing for line in lines[:-2])


def test_a_connection_without_transport_is_not_kept() -> None:
    connections, clock = pool()
    line = Line(connections, clock)
    line.lose()
    connections.give_back(line.connection)
    assert connections.take(REPLICA) is None
