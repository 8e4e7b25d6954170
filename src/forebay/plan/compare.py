"""Several policies over the same realisations of the same traffic."""

from collections.abc import Callable, Sequence
from math import ceil
from random import Random

from msgspec import Struct
from msgspec.structs import replace

from forebay.engines.sim.spec import SimSpec
from forebay.plan.gated import admission_for, gated
from forebay.plan.policies import BASELINES, RouterFactory
from forebay.plan.report import Slo, Summary, summary
from forebay.plan.run import Run
from forebay.plan.traces import Arrival, Synthetic, realisation, synthetic
from forebay.policy import Admission, Preset

OWN: dict[str, Preset] = {"forebay_throughput": "throughput", "forebay_latency": "latency"}
CONFIGURED = "forebay_config"
# A fleet is dealt into cells of at most so many replicas, and one cell is run.
CELL_REPLICAS = 64


class Study(Struct, frozen=True, kw_only=True):
    """What is compared on.

    Attributes:
        traces: of the traffic, each in order of time; empty makes arrivals by `shape`.
        shape: of synthetic traffic.
        spec: of every engine.
        replicas: engines.
        load_ratio: prompt tokens that arrive, over those that all engines could compute with nothing else to do.
        seconds: length of the window that is cut out of each trace.
        realisations: how many samples of the traffic.
        seed: of all that is random.
        slo: what is good.
        admission: of a configuration, for the policy CONFIGURED.
    """

    traces: tuple[tuple[Arrival, ...], ...] = ()
    shape: Synthetic = Synthetic()
    spec: SimSpec = SimSpec()
    replicas: int = 3
    load_ratio: float = 0.87
    seconds: float = 1500.0
    realisations: int = 3
    seed: int = 1
    slo: Slo = Slo()
    admission: Admission | None = None

    def __post_init__(self) -> None:
        """Refuse what has no answer.

        Raises:
            ValueError: a number is not above 0.
        """
        for name in ("replicas", "load_ratio", "seconds", "realisations"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} must be above 0")

    @property
    def cells(self) -> int:
        """Cells that the fleet is dealt into."""
        return ceil(self.replicas / CELL_REPLICAS)

    @property
    def cell_replicas(self) -> int:
        """Replicas of the cell that is run."""
        return ceil(self.replicas / self.cells)


def peak_prefill_tokens_per_s(spec: SimSpec) -> float:
    """Return the prompt tokens that one engine computes in a second in full chunks, decoding nothing."""
    return 1000 * spec.chunk_tokens / (spec.iteration_base_ms + spec.chunk_tokens * spec.prefill_ms)


def policy_names(study: Study) -> list[str]:
    """Return the names of all policies that can be compared."""
    return [*BASELINES, *OWN, *([CONFIGURED] if study.admission is not None else [])]


def arrivals_of(study: Study, number: int) -> list[Arrival]:
    """Make one realisation of the traffic of a cell.

    Raises:
        ValueError: a trace is shorter than the window.
    """
    tokens_per_s = study.load_ratio * study.cell_replicas * peak_prefill_tokens_per_s(study.spec)
    if study.traces:
        return realisation(study.traces, number, study.seconds, tokens_per_s, study.seed)
    return synthetic(study.shape, study.seconds, tokens_per_s, Random(f"{study.seed}/{number}"))


def compare(
    study: Study, policies: Sequence[str], on_progress: Callable[[str, float], None] | None = None
) -> dict[str, list[Summary]]:
    """Run each policy over each realisation; return the summaries by policy.

    Args:
        study: the setup.
        policies: names, of `policy_names`.
        on_progress: called with what runs, and how much of everything is done, 0..1.

    Raises:
        ValueError: a policy is unknown, or a trace is shorter than the window.
    """
    known = policy_names(study)
    for name in policies:
        if name not in known:
            raise ValueError(f"there is no policy {name!r}; there are {', '.join(known)}")
    results: dict[str, list[Summary]] = {name: [] for name in policies}
    runs = study.realisations * len(results)
    done = 0
    for number in range(study.realisations):
        arrivals = arrivals_of(study, number)
        for name, summaries in results.items():
            progress = _Progress(on_progress, f"{name} {number + 1}/{study.realisations}", done / runs, runs)
            rows = Run(arrivals, study.spec, study.cell_replicas, factory(study, name, arrivals)).rows(progress.arrived)
            summaries.append(_of_fleet(summary(rows, study.slo), study))
            done += 1
            progress.ended()
    return results


def factory(study: Study, name: str, arrivals: Sequence[Arrival]) -> RouterFactory:
    """Return what makes the router of a policy.

    Raises:
        KeyError: there is no such policy.
    """
    if name in BASELINES:
        return BASELINES[name]
    if name == CONFIGURED and study.admission is not None:
        return gated(study.admission, arrivals)
    return gated(admission_for(OWN[name], study.slo), arrivals)


def _of_fleet(one: Summary, study: Study) -> Summary:
    """Scale what adds up from the cell that was run to the fleet."""
    scale = study.replicas / study.cell_replicas
    return replace(
        one,
        requests=round(one.requests * scale),
        goodput_tokens_per_s=one.goodput_tokens_per_s * scale,
        throughput_tokens_per_s=one.throughput_tokens_per_s * scale,
    )


class _Progress:
    """Tells how much of everything is done, from how much of one run is."""

    def __init__(self, tell: Callable[[str, float], None] | None, name: str, done: float, runs: int) -> None:
        self._tell = tell
        self._name = name
        self._done = done
        self._runs = runs

    def arrived(self, share: float) -> None:
        if self._tell is not None:
            self._tell(self._name, self._done + share / self._runs)

    def ended(self) -> None:
        self.arrived(1.0)
