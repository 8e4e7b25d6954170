"""`forebay rules test`: each call of the journal counts for the rule that would have decided on it."""

import os
from pathlib import Path

import msgspec
import pytest

from forebay.cli import rules as module
from forebay.cli.rules import IN_JOURNAL, missing_fields, run_rules_test, try_rules, words_of
from forebay.config.load import Settings, parse_address
from forebay.config.rules import FIELDS
from forebay.policy import Action, Condition, Policy, Rule
from forebay.recording.lines import CloseLine

NOW_S = 1_800_000_000.0
LONG = Rule("long", (Condition("input_tokens", "gt", 8192),), Action(reject="Split it."))
RETRIED = Rule("retried", (Condition("retries", "ge", 3),), Action(reroute="small"))
TEAM = Rule("team", (Condition("body:/metadata/team", "eq", "x"), Condition("images", "gt", 0)), Action(value="low"))


def line(number: int = 0, **facts: object) -> CloseLine:
    values = {"model": "m", "tenant": "a", "input_length": 100, "output_length": 10, "total_tokens": 110, **facts}
    return CloseLine(NOW_S - 60.0 - number, f"c{number}", f"c{number}", "chat", "10.0.0.1", **values)  # type: ignore[arg-type]


def test_each_call_counts_for_the_first_rule_that_holds() -> None:
    lines = [
        line(input_length=9000, total_tokens=9010, retry_count=3),
        line(retry_count=3, tenant="b"),
        line(retry_count=4, tenant=None, total_tokens=None),
        line(),
    ]
    trial = try_rules([LONG, RETRIED], lines)
    assert [(name, tally.calls, tally.tokens) for name, tally in trial.tallies.items()] == [
        ("long", 1, 9010),
        ("retried", 2, 210),
    ]
    assert trial.tallies["retried"].tenants == {"b": 1, "(none)": 1}
    assert (trial.untouched.calls, trial.left_out) == (1, 0)


@pytest.mark.parametrize(
    ("condition", "facts"),
    [
        (Condition("output_tokens", "eq", 7), {"max_tokens": 7}),
        (Condition("output_tokens", "exists", False), {"max_tokens": None}),
        (Condition("template", "eq", "t"), {"prompt_template_id": "t"}),
        (Condition("value", "eq", "low"), {"request_value": "low"}),
        (Condition("stream", "eq", True), {"stream": True}),
        (Condition("model", "eq", "q"), {"model": "q"}),
        (Condition("tenant", "eq", "z"), {"tenant": "z"}),
        (Condition("endpoint", "eq", "chat"), {}),
        (Condition("input_tokens", "eq", 5), {"input_length": None, "input_estimate_tokens": 5}),
    ],
)
def test_every_fact_of_the_journal_is_looked_at(condition: Condition, facts: dict[str, object]) -> None:
    trial = try_rules([Rule("r", (condition,), Action(value="low"))], [line(**facts)])
    assert trial.tallies["r"].calls == 1


def test_the_fields_of_the_journal_exist() -> None:
    assert set(FIELDS) > IN_JOURNAL


def test_a_rule_that_needs_more_than_the_journal_is_passed_over() -> None:
    assert missing_fields(TEAM) == ["body:/metadata/team", "images"]
    trial = try_rules([TEAM, LONG], [line(input_length=9000)])
    assert list(trial.tallies) == ["long"]
    assert trial.tallies["long"].calls == 1


def test_calls_that_no_rule_saw_are_left_out() -> None:
    trial = try_rules([LONG], [line(model=None), line(input_length=None)])
    assert (trial.left_out, trial.untouched.calls) == (2, 0)


def test_actions_in_words() -> None:
    assert words_of(Action(reject="Split it.")) == "reject (422)"
    assert words_of(Action("", "small", "low", 5)) == "reroute to small, class at most low, cap at 5 tokens"


def fake_load(monkeypatch: pytest.MonkeyPatch, *rules: Rule) -> None:
    here = parse_address("127.0.0.1:0")
    settings = Settings(here, here, "info", Policy({}, {}, {}, rules=rules), b"")
    monkeypatch.setattr(module, "load", lambda *_: settings)


def journal(tmp_path: Path, *lines: CloseLine) -> Path:
    folder = tmp_path / "journal"
    folder.mkdir()
    segment = folder / "20270115-000000-1.jsonl"
    segment.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in lines))
    os.utime(segment, (NOW_S, NOW_S))
    return tmp_path


def test_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_load(monkeypatch, LONG, TEAM, RETRIED)
    lines = [line(n, input_length=9000, total_tokens=9010, tenant=f"t{n % 5}") for n in range(8)]
    lines += [line(model=None), line(10), line(11)]
    lines.append(line(100_000, input_length=9000))
    assert run_rules_test(Path("f.yaml"), journal(tmp_path, *lines), "24h", NOW_S) == 0
    rows = {row.split()[0]: " ".join(row.split()) for row in capsys.readouterr().out.splitlines() if row.strip()}
    assert rows["long"] == "long reject (422) 8 80.0% 72,080 t0 2, t1 2, t2 2 and 2 more"
    assert rows["retried"] == "retried reroute to small 0 0.0% 0"
    assert rows["team"].startswith("team class at most low - - - cannot be tested on the journal:")
    assert rows["no"] == "no rule: 2"
    assert rows["left"] == "left out: 1 refused before rules are asked"


def test_an_empty_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_load(monkeypatch, LONG)
    assert run_rules_test(Path("f.yaml"), tmp_path, "7d", NOW_S) == 0
    assert "last 7d: 0 calls" in capsys.readouterr().out


@pytest.mark.parametrize("since", ["", "24", "h", "0h", "1.5h", "24 h", "1y", "-1h", "9999999d"])
def test_a_wrong_span(since: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_rules_test(tmp_path / "f.yaml", tmp_path, since, NOW_S) == 2
    assert "such as 24h" in capsys.readouterr().err


def test_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("pools: {}\nmodls: {}\n")
    assert run_rules_test(path, tmp_path, "90m", NOW_S) == 2
    assert any(fault.startswith(f"{path}:2: modls") for fault in capsys.readouterr().err.splitlines())


def test_a_journal_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_load(monkeypatch, LONG)
    folder = tmp_path / "journal"
    (folder / "20270115-000000-1.jsonl").mkdir(parents=True)
    assert run_rules_test(Path("f.yaml"), tmp_path, "24h", NOW_S) == 1
    assert "cannot be read" in capsys.readouterr().err
