"""The report as a document for machines, and as rows of text for people."""

from msgspec import Struct

from forebay.release.figures import Ends, Report, Row, Says, percentile
from forebay.release.mix import LONG_RATIO, Lengths, Speed
from forebay.release.proof import WAY_NAMES, Proof, Timing, Way

_WORDS: dict[Says, str] = {"no clear difference": "not significant", "too few": "too little to say"}


class EngineFacts(Struct, frozen=True):
    """The engine that was measured; `address` holds no credential."""

    product: str
    version: str
    address: str
    model: str
    slots: int | None
    context_tokens: int | None


class MachineFacts(Struct, frozen=True):
    """Where the load maker and Forebay ran."""

    cores: int
    cpu: str
    system: str


class ArmFigures(Struct, frozen=True):
    """One arm alone; milliseconds are None where nothing was answered."""

    pair: int
    way: Way
    took_s: float
    asked: int
    answered: int
    failed: int
    lost: int
    short_ttft_p50_ms: float | None
    short_ttft_p95_ms: float | None
    long_ttft_p99_ms: float | None
    tokens_per_s: float
    late_p99_ms: float


class Document(Struct, frozen=True):
    """Everything about one proof, so that it can be repeated and compared."""

    forebay: str
    date: str
    engine: EngineFacts
    machine: MachineFacts
    seconds: float
    seed: int
    long_ratio: float
    lengths: Lengths
    speed: Speed
    timing: Timing
    capacity_per_s: float
    offered_per_s: float
    rows: list[Row]
    ends: dict[Way, Ends]
    notes: list[str]
    arms: list[ArmFigures]


class Origin(Struct, frozen=True):
    """When, with what and on what a proof was made."""

    forebay: str
    date: str
    engine: EngineFacts
    machine: MachineFacts
    seconds: float
    seed: int


class Table(Struct, frozen=True):
    """Text for people: lines above, columns, one tuple per row, lines below."""

    head: list[str]
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    foot: list[str]


def document(origin: Origin, proof: Proof, report: Report) -> Document:
    """Put everything into one document."""
    return Document(
        forebay=origin.forebay,
        date=origin.date,
        engine=origin.engine,
        machine=origin.machine,
        seconds=origin.seconds,
        seed=origin.seed,
        long_ratio=LONG_RATIO,
        lengths=proof.lengths,
        speed=proof.speed,
        timing=proof.timing,
        capacity_per_s=proof.capacity_per_s,
        offered_per_s=proof.offered_per_s,
        rows=report.rows,
        ends=report.ends,
        notes=report.notes,
        arms=_arms(proof),
    )


def table(made: Document) -> Table:
    """Render a document as text."""
    rows = [_text_of(row) for row in made.rows]
    direct, forebay = made.ends["direct"], made.ends["forebay"]
    for name, one, two in (("failed", direct.failed, forebay.failed), ("lost", direct.lost, forebay.lost)):
        rows.append((name, f"{one} of {direct.asked}", f"{two} of {forebay.asked}", "", "", "", ""))
    columns = ("", WAY_NAMES["direct"], WAY_NAMES["forebay"], "ratio", "each pair", "95 % range", "Forebay is")
    return Table(_head(made), columns, rows, made.notes)


def _head(made: Document) -> list[str]:
    engine, machine, lengths, timing = made.engine, made.machine, made.lengths, made.timing
    what = " ".join(part for part in (engine.product or "An OpenAI-compatible server", engine.version) if part)
    room = "" if engine.slots is None else f", {engine.slots} slots"
    return [
        f"{what} at {engine.address}, model {engine.model}{room}; {machine.cores} cores, {machine.cpu}",
        f"85 % short prompts ({lengths.short_tokens} tokens), 15 % long ones ({lengths.long_tokens} tokens), "
        f"answers of {lengths.output_tokens} tokens; {timing.pairs} pairs of {timing.arm_s:.1f} s each way",
        f"{made.offered_per_s:.2f} calls/s arrive: 90 % of the {made.capacity_per_s:.2f} that it answers alone; "
        f"{made.date}, seed {made.seed}",
    ]


def _text_of(row: Row) -> tuple[str, ...]:
    pairs = f"{min(row.pair_ratios):.2f} .. {max(row.pair_ratios):.2f}" if row.pair_ratios else ""
    interval = f"{row.interval[0]:.2f} .. {row.interval[1]:.2f}" if row.interval else ""
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    return row.name, _number(row.direct), _number(row.forebay), ratio, pairs, interval, _WORDS.get(row.says, row.says)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _arms(proof: Proof) -> list[ArmFigures]:
    made = []
    for arm in proof.arms:
        answered = [s for s in arm.samples if s.end == "ok"]
        short = sorted(s.ttft_s * 1e3 for s in answered if s.kind == "short" and s.ttft_s is not None)
        long = sorted(s.ttft_s * 1e3 for s in answered if s.kind == "long" and s.ttft_s is not None)
        figures = ArmFigures(
            pair=arm.pair,
            way=arm.way,
            took_s=arm.took_s,
            asked=len(arm.samples),
            answered=len(answered),
            failed=sum(s.end == "failed" for s in arm.samples),
            lost=sum(s.end == "lost" for s in arm.samples),
            short_ttft_p50_ms=percentile(short, 0.5) if short else None,
            short_ttft_p95_ms=percentile(short, 0.95) if short else None,
            long_ttft_p99_ms=percentile(long, 0.99) if long else None,
            tokens_per_s=sum(s.prompt_tokens + s.output_tokens for s in answered) / max(arm.took_s, 1e-9),
            late_p99_ms=percentile(sorted(s.late_s for s in arm.samples), 0.99) * 1e3,
        )
        made.append(figures)
    return made
