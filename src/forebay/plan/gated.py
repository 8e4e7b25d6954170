"""The product's own gate and fleet as a policy of the planner: the same code, on virtual time."""

from collections.abc import Sequence
from functools import partial
from math import ceil

from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import Clock
from forebay.domain import VALUES, Replica, Spend, Tenant, Value
from forebay.engines.sim.spec import SimSpec
from forebay.errors import Refused
from forebay.plan.policies import Floor, Job, RouterFactory
from forebay.plan.report import Slo
from forebay.plan.traces import Arrival
from forebay.policy import PATIENT, PROMPT, Admission, Capacity, ClassPolicy, Policy, Pool, Preset
from forebay.routing.pool import Fleet
from forebay.routing.replica import Lease
from forebay.traffic import Call, Work
from forebay.wire.endpoints import BY_PATH

POOL = "plan"
TICK_S = 0.1
PATIENCE_S = 600.0
_RESERVED_SHARE = 0.9


def admission_for(preset: Preset, slo: Slo) -> Admission:
    """Return a preset whose `medium` class promises what the run is judged by; other classes keep their proportion."""
    classes = PROMPT if preset == "latency" else PATIENT
    medium = classes["medium"]
    fitted: dict[Value, ClassPolicy] = {}
    for value in VALUES:
        rule = classes[value]
        fitted[value] = ClassPolicy(
            rule.target_s * slo.short_s / medium.target_s,
            rule.long_target_s * slo.long_s / medium.long_target_s,
            rule.max_wait_s,
            rule.share_ratio,
        )
    return Admission(preset, fitted, refuses_early=preset == "latency", long_prompt_tokens=slo.long_prompt_tokens)


def gated(admission: Admission, arrivals: Sequence[Arrival]) -> RouterFactory:
    """Return what makes a `Gated` router.

    Args:
        admission: how calls are let in.
        arrivals: whose answers' lengths are what each tenant's past would have taught the gate.
    """
    return partial(Gated, admission, _outputs(arrivals))


class Gated:
    """Offers each arrival to a `LocalGate` before a `Fleet`, and tells both what the engines do.

    The gate knows the prompt's tokens; of the answer it knows what is usual for the tenant: the 90th percentile
    and the mean. Slots and KV room are declared, as telemetry would tell them; the speed is learned.
    """

    tick_s = TICK_S

    def __init__(
        self,
        admission: Admission,
        outputs: dict[str, tuple[int, int]],
        floor: Floor,
        clock: Clock,
        spec: SimSpec,
        replicas: int,
    ) -> None:
        self._floor = floor
        self._clock = clock
        self._outputs = outputs
        self._tenants = {name: Tenant(name) for name in outputs}
        self._permits: dict[int, LocalPermit] = {}
        names = [f"engine{index}" for index in range(replicas)]
        self._index = {name: index for index, name in enumerate(names)}
        pool = Pool(
            POOL,
            "vllm",
            tuple([Replica(name, name, 8000) for name in names]),
            capacity=Capacity(kv_tokens=spec.kv_tokens, streams=spec.max_num_seqs),
        )
        policy = Policy({POOL: pool}, {}, {}, admission=admission)
        fleet = Fleet(clock)
        fleet.apply(policy)
        self._fleet = fleet
        self._gate = LocalGate(clock, fleet)
        self._gate.apply(policy)

    def arrive(self, job: Job) -> None:
        """Offer a request to the gate."""
        self._gate.offer(self._call(job), POOL, partial(self._granted, job), partial(self._refused, job))

    def first_token(self, job: Job) -> None:
        """Tell the lease."""
        lease = self._permits[job.number].lease
        if lease is not None:
            lease.first_token()

    def end(self, job: Job) -> None:
        """Report the try and give the permit back."""
        permit = self._permits.pop(job.number)
        if permit.lease is not None:
            permit.lease.report(None, answered=True)
        permit.release(Spend(job.arrival.prompt_tokens + job.arrival.output_tokens))

    def tick(self) -> None:
        """Let gate and fleet follow the time."""
        self._fleet.tick()
        self._gate.tick()

    def _granted(self, job: Job, permit: LocalPermit) -> None:
        lease = permit.lease
        if not isinstance(lease, Lease):
            permit.release(Spend(0))
            self._floor.refuse(job, "no_engine")
            return
        self._permits[job.number] = permit
        self._floor.send(job, self._index[lease.state.replica.name])

    def _refused(self, job: Job, refusal: Refused) -> None:
        self._floor.refuse(job, refusal.code)

    def _call(self, job: Job) -> Call:
        arrival = job.arrival
        reserved, likely = self._outputs[arrival.tenant]
        now_s = self._clock.now_s()
        return Call(
            call_id=str(job.number),
            endpoint=BY_PATH["/v1/chat/completions"],
            model=POOL,
            stream=True,
            wants_usage=True,
            tenant=self._tenants[arrival.tenant],
            prompt_tokens=arrival.prompt_tokens,
            output_tokens=reserved,
            headers=(),
            received_s=now_s,
            deadline_s=now_s + PATIENCE_S,
            value=arrival.value,
            work=Work(arrival.prompt_tokens, reserved, likely),
        )


def _outputs(arrivals: Sequence[Arrival]) -> dict[str, tuple[int, int]]:
    """Return the 90th percentile and the mean of each tenant's answers, in tokens."""
    lengths: dict[str, list[int]] = {}
    for arrival in arrivals:
        lengths.setdefault(arrival.tenant, []).append(arrival.output_tokens)
    return {
        tenant: (sorted(found)[ceil(_RESERVED_SHARE * len(found)) - 1], round(sum(found) / len(found)))
        for tenant, found in lengths.items()
    }
