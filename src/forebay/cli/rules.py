"""`forebay rules test`: which calls of the journal the rules of a file would have decided on."""

import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec import Struct, field
from rich import box
from rich.console import Console
from rich.table import Table

from forebay.admission.rules import RuleFacts, RuleSet
from forebay.config.load import environment, load
from forebay.domain import VALUES
from forebay.errors import ConfigError
from forebay.policy import Action, Rule
from forebay.recording.lines import CloseLine
from forebay.recording.reading import closes

IN_JOURNAL = frozenset(
    {"input_tokens", "output_tokens", "model", "tenant", "endpoint", "stream", "template", "value", "retries"}
)
"""The fields that a `close` line holds too."""

_SINCE = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_SHOWN_TENANTS = 3
_MIN_WIDTH = 100


class Tally(Struct):
    """What one rule would have decided on.

    Attributes:
        tokens: of the calls, prompt and answer.
        tenants: calls of each, by name.
    """

    calls: int = 0
    tokens: int = 0
    tenants: dict[str, int] = field(default_factory=dict)

    def add(self, line: CloseLine) -> None:
        """Count a call."""
        self.calls += 1
        self.tokens += line.total_tokens or line.input_length or 0
        name = line.tenant or "(none)"
        self.tenants[name] = self.tenants.get(name, 0) + 1


class Trial(Struct, frozen=True):
    """What the rules would have done with the calls of a journal.

    Attributes:
        tallies: by name of the rule, in order; those that cannot be tested are missing.
        untouched: calls that no rule decides on.
        left_out: calls that ended before they were understood, so that no rule saw them.
    """

    tallies: dict[str, Tally]
    untouched: Tally
    left_out: int


def missing_fields(rule: Rule) -> list[str]:
    """Return the fields that a rule needs and the journal does not hold."""
    return [name for name in dict.fromkeys(condition.field for condition in rule.when) if name not in IN_JOURNAL]


def try_rules(rules: Sequence[Rule], lines: Iterable[CloseLine]) -> Trial:
    """Decide on calls that have ended; rules that cannot be tested are passed over.

    Args:
        rules: in order.
        lines: of the journal; each is looked at once.
    """
    testable = tuple(rule for rule in rules if not missing_fields(rule))
    compiled = RuleSet(testable)
    tallies = {rule.name: Tally() for rule in testable}
    untouched = Tally()
    left_out = 0
    for line in lines:
        facts = _facts_of(line)
        if facts is None:
            left_out += 1
        else:
            tallies.get(compiled.decide(facts).rule, untouched).add(line)
    return Trial(tallies, untouched, left_out)


def _facts_of(line: CloseLine) -> RuleFacts | None:
    """Return what the rules saw of a call; None when it was refused before them."""
    tokens = line.input_length or line.input_estimate_tokens
    if line.model is None or tokens is None:
        return None
    return RuleFacts(
        input_tokens=tokens,
        output_tokens=line.max_tokens,
        model=line.model,
        tenant=line.tenant or "",
        endpoint=line.endpoint,
        stream=line.stream is True,
        template=line.prompt_template_id,
        value=next((value for value in VALUES if value == line.request_value), "medium"),
        retries=line.retry_count,
        exact=True,
    )


def run_rules_test(config: Path, data_dir: Path, since: str, now_wall_s: float) -> int:
    """Print which calls of the journal each rule of a file would have decided on.

    Args:
        config: the configuration file; it need not be the one that is served.
        data_dir: where the journal is.
        since: how far to look back: a number and s, m, h or d.
        now_wall_s: Unix seconds.

    Returns:
        The exit code: 0 done, 1 the journal cannot be read, 2 the file or `since` is wrong.
    """
    span = _SINCE.fullmatch(since)
    if span is None:
        print(f"--since {since!r}: write a number and s, m, h or d, such as 24h", file=sys.stderr)
        return 2
    try:
        rules = load(config, environment(), now_wall_s).policy.rules
    except ConfigError as error:
        print("\n".join(error.faults), file=sys.stderr)
        return 2
    folder = data_dir / "journal"
    try:
        trial = try_rules(rules, closes(folder, now_wall_s - int(span[1]) * _UNITS_S[span[2]]))
    except OSError as error:
        print(f"{folder}: cannot be read: {error.strerror}; check --data-dir and its permissions", file=sys.stderr)
        return 1
    _show(rules, trial, f"{folder}, last {since}")
    return 0


def _show(rules: Sequence[Rule], trial: Trial, source: str) -> None:
    console = Console(markup=False, highlight=False)
    if console.width < _MIN_WIDTH and not console.is_terminal:
        console.width = _MIN_WIDTH
    seen = trial.untouched.calls + sum(tally.calls for tally in trial.tallies.values())
    table = Table(box=box.SIMPLE_HEAD, title=f"{source}: {seen} calls", title_justify="left")
    for name in ("rule", "does"):
        table.add_column(name, overflow="fold")
    for name in ("calls", "share", "tokens"):
        table.add_column(name, justify="right")
    table.add_column("tenants", overflow="fold")
    for rule in rules:
        tally = trial.tallies.get(rule.name)
        if tally is None:
            reason = f"cannot be tested on the journal: {', '.join(missing_fields(rule))}"
            table.add_row(rule.name, words_of(rule.then), "-", "-", "-", reason)
        else:
            table.add_row(rule.name, words_of(rule.then), *_cells(tally, seen))
    console.print(table)
    console.print(f"no rule: {trial.untouched.calls}")
    if trial.left_out:
        console.print(f"left out: {trial.left_out} refused before rules are asked")


def _cells(tally: Tally, seen: int) -> tuple[str, str, str, str]:
    share = f"{tally.calls / seen:.1%}" if seen else "-"
    most = sorted(tally.tenants.items(), key=lambda item: (-item[1], item[0]))
    names = ", ".join(f"{name} {calls}" for name, calls in most[:_SHOWN_TENANTS])
    rest = f" and {len(most) - _SHOWN_TENANTS} more" if len(most) > _SHOWN_TENANTS else ""
    return str(tally.calls), share, f"{tally.tokens:,}", names + rest


def words_of(action: Action) -> str:
    """Say what an action does, in a few words."""
    words = ["reject (422)"] if action.reject else []
    if action.reroute:
        words.append(f"reroute to {action.reroute}")
    if action.value is not None:
        words.append(f"class at most {action.value}")
    if action.cap_tokens is not None:
        words.append(f"cap at {action.cap_tokens} tokens")
    return ", ".join(words)
