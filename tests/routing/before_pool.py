"""A fleet of one pool on a clock that stands still."""

from forebay.actions import Actions
from forebay.clock import ManualClock
from forebay.domain import FailureKind, Replica, Tenant
from forebay.policy import Admission, Capacity, Policy, Pool
from forebay.retrying import LocalRetries
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.routing.replica import Lease, ReplicaState
from forebay.traffic import Call, Work
from forebay.wire.endpoints import BY_PATH

CHAT = BY_PATH["/v1/chat/completions"]
SPEED = 10_000.0
KNOWN = Capacity(prefill_tokens_per_s=SPEED)


def call(tokens: int, output: int = 0, blocks: tuple[int, ...] = (), *, stream: bool = True) -> Call:
    work = Work(tokens, output, output, blocks=blocks)
    return Call("c", CHAT, "m", stream, False, Tenant("a"), tokens, output, (), 0.0, 1e9, work=work)


def replicas(*names: str) -> tuple[Replica, ...]:
    return tuple(Replica(name, "127.0.0.1", 1) for name in names)


class Bench:
    """A fleet of one pool on a clock that stands still."""

    def __init__(self, *names: str, **pool: object) -> None:
        self.clock = ManualClock(100.0)
        self.fleet = Fleet(self.clock)
        self.acting = (self.fleet, Actions(self.fleet, self.clock), self.clock)
        self.retries = LocalRetries(self.fleet, RetryBudgets(self.clock.now_s))
        self.admission = Admission(long_prompt_tokens=2048)
        self.follow(*names, **pool)

    def follow(self, *names: str, **pool: object) -> None:
        made = Pool("main", "vllm", replicas(*(names or ("a", "b", "c"))), **pool)  # type: ignore[arg-type]
        self.fleet.apply(Policy({"main": made}, {}, {}, admission=self.admission))

    def state(self, name: str) -> ReplicaState:
        return next(state for state in self.fleet.states("main") if state.replica.name == name)

    def take(self, tokens: int = 1, *excluded: str) -> Lease | None:
        """Take what health and the configured limit allow."""
        return self.fleet.take("main", call(tokens), frozenset(excluded), held=False)

    def held(
        self, tokens: int = 1, output: int = 0, blocks: tuple[int, ...] = (), *, stream: bool = True
    ) -> Lease | None:
        """Take what the hold allows as well."""
        return self.fleet.take("main", call(tokens, output, blocks, stream=stream))

    def into(self, name: str, tokens: int = 1, output: int = 0) -> Lease:
        """Take a certain replica."""
        others = frozenset(state.replica.name for state in self.fleet.states("main")) - {name}
        lease = self.fleet.take("main", call(tokens, output), others, held=False)
        assert lease is not None
        return lease

    def taken(self, tokens: int = 1, *excluded: str) -> str | None:
        lease = self.take(tokens, *excluded)
        return lease and lease.state.replica.name

    def fail(self, name: str, times: int = 1) -> None:
        others = tuple(s.replica.name for s in self.fleet.states("main") if s.replica.name != name)
        for _ in range(times):
            lease = self.take(1, *others)
            assert lease is not None
            lease.report(FailureKind.RESET, answered=False)


def learned(bench: Bench, name: str, tokens_per_s: float, count: int = 40) -> None:
    """Let a replica show its speed."""
    for tokens in range(100, 100 + 40 * count, 40):
        lease = bench.into(name, tokens)
        bench.clock.advance(tokens / tokens_per_s)
        lease.first_token()
        lease.report(None, answered=True)
