"""Eight replicas, steady traffic and one request that kills: a world for `poison` and `suspects`, on a told time."""

import random
from dataclasses import dataclass, field

from forebay.routing.poison import Flight, Judged, Quarantine
from forebay.routing.suspects import Trials, site_of

STEP_S = 0.05
PREFILL_S = 0.2
TOKENS_PER_S = 50.0
SETTLE_S = 0.1
POISON = 666


@dataclass
class SimCall:
    """A call, wherever it is; `kills_at` counts the tokens of the whole answer."""

    call_id: str
    fingerprint: int
    tokens: int
    kills_at: int | None = None
    emitted: int = 0
    sent_s: float = 0.0
    decoded: int = 0
    on_trial: bool = False
    first_s: float = -1.0

    def step(self, now_s: float) -> None:
        self.decoded = max(0, int((now_s - self.sent_s - PREFILL_S) * TOKENS_PER_S))

    def kills(self, now_s: float) -> bool:
        if self.kills_at is None:
            return False
        left = max(0, self.kills_at - self.emitted)
        return self.decoded >= left if left else now_s - self.sent_s >= 0.5 * PREFILL_S

    def flight(self) -> Flight:
        return Flight(self.call_id, self.fingerprint, 0, self.sent_s, self.decoded, self.emitted + self.decoded)


@dataclass
class Ward:
    """What a gateway would do with the modules, in steps of 50 ms."""

    seed: int
    replicas: int = 8
    arrivals_per_s: float = 6.0
    tokens: int = 150
    now_s: float = 0.0
    trials: Trials = field(default_factory=Trials)
    quarantine: Quarantine = field(default_factory=Quarantine)
    dead: list[str] = field(default_factory=list)
    refused: list[SimCall] = field(default_factory=list)
    answered: int = 0
    sent: int = 0
    most_on_trial: int = 0

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.running: dict[str, list[SimCall]] = {f"r{n}": [] for n in range(self.replicas)}
        self.lost: list[tuple[float, SimCall, Judged]] = []
        self.waiting: list[SimCall] = []

    def arrive(self, fingerprint: int, kills_at: int | None = None, tokens: int | None = None) -> SimCall:
        self.sent += 1
        call = SimCall(f"c{self.sent}", fingerprint, tokens or self.tokens, kills_at)
        self.send(call)
        return call

    def send(self, call: SimCall) -> None:
        """Let a call go where its standing allows."""
        standing = self.quarantine.standing(call.fingerprint, self.now_s)
        if standing == "quarantined":
            self.refused.append(call)
        elif standing == "suspect":
            assert self.trials.enter("pool", call.call_id, call.first_s if call.first_s >= 0 else self.now_s)
            self.waiting.append(call)
        else:
            self.place(call)

    def place(self, call: SimCall, *, moved: bool = False) -> None:
        """Send a call to the least loaded replica; a suspect to the site, one that moves from the dead elsewhere."""
        site = site_of(self.running)
        names = [name for name in self.running if not (moved and name == site)] or list(self.running)
        if call.on_trial:
            names = [site]
        replica = min(names, key=lambda name: (len(self.running[name]), self.random.random()), default="")
        if not replica:
            self.refused.append(call)
            return
        call.emitted += call.decoded
        call.sent_s, call.decoded = self.now_s, 0
        if call.first_s < 0:
            call.first_s = self.now_s
        self.running[replica].append(call)

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s += STEP_S
            if self.random.random() < self.arrivals_per_s * STEP_S:
                self.arrive(self.random.getrandbits(64), tokens=self.random.randint(1, 2 * self.tokens))
            for name in list(self.running):
                self.step(name)
            self.hear_findings()
            self.ask_turns()

    def step(self, name: str) -> None:
        for call in list(self.running[name]):
            call.step(self.now_s)
            if call.on_trial and self.quarantine.survived(call.fingerprint, call.emitted + call.decoded):
                self.leave_trial(call)
        if any(call.kills(self.now_s) for call in self.running[name]):
            self.kill(name)
            return
        for call in [call for call in self.running[name] if call.emitted + call.decoded >= call.tokens]:
            self.running[name].remove(call)
            self.quarantine.answered(call.fingerprint)
            self.leave_trial(call)
            self.answered += 1

    def kill(self, name: str) -> None:
        calls = self.running.pop(name)
        self.dead.append(name)
        self.trials.died("pool")
        judged = self.quarantine.died(name, [call.flight() for call in calls], self.now_s)
        self.lost += [(self.now_s + SETTLE_S, call, judged[call.call_id]) for call in calls]

    def leave_trial(self, call: SimCall) -> None:
        if call.on_trial:
            call.on_trial = False
            self.trials.leave("pool", call.call_id)

    def hear_findings(self) -> None:
        due = [entry for entry in self.lost if entry[0] <= self.now_s]
        self.lost = [entry for entry in self.lost if entry[0] > self.now_s]
        for _, call, judged in due:
            self.leave_trial(call)
            if judged.finding == "guilty":
                self.refused.append(call)
            elif judged.finding == "innocent":
                self.place(call, moved=True)
            else:
                self.send(call)

    def ask_turns(self) -> None:
        for call in list(self.waiting):
            standing = self.quarantine.standing(call.fingerprint, self.now_s)
            if standing != "suspect":
                self.waiting.remove(call)
                self.trials.leave("pool", call.call_id)
                self.send(call)
            elif self.trials.turn("pool", call.call_id, self.now_s):
                self.waiting.remove(call)
                call.on_trial = True
                self.place(call)
        on_trial = sum(call.on_trial for calls in self.running.values() for call in calls)
        self.most_on_trial = max(self.most_on_trial, on_trial)

    def bystanders_refused(self) -> list[SimCall]:
        return [call for call in self.refused if call.kills_at is None]
