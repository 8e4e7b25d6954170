"""Good files, and what cannot be a file."""

import os
from hashlib import sha256
from pathlib import Path

import pytest
from msgspec.structs import asdict, fields

from forebay.config import schema
from forebay.config.load import (
    Address,
    Pinned,
    Settings,
    default_settings,
    environment,
    load,
    parse_file,
    read_file,
)
from forebay.config.source import MAX_BYTES
from forebay.domain import Replica, Tenant
from forebay.errors import ConfigError
from forebay.policy import BreakerPolicy, Degrade, Limits, Model, Pool, Resume, Shutdown, Stream, Timeouts

GOOD = Path(__file__).parent / "good"
SECRET = "CANARY-0123456789abcdef0123456789abcdef"
ENVIRON = {"ENGINE_KEY": "sk-CANARY-2\n", "KEY_A": "sk-CANARY-1-long-enough", "KEY_OF_RESUME": f"{SECRET}\n"}


def digest(key: str) -> bytes:
    return sha256(key.encode()).digest()


def parse(text: str, *, bound: Address | None = None, listen: Address | None = None) -> Settings:
    return parse_file(text.encode(), "f.yaml", {}, 0.0, Pinned(listen=listen, bound=bound))


def faults_of(data: bytes | str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_file(data.encode() if isinstance(data, str) else data, "f.yaml", {}, 0.0, Pinned())
    return caught.value.faults


SMALLEST = (GOOD / "smallest.yaml").read_text()


@pytest.mark.parametrize("path", sorted(GOOD.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_good_file_is_taken(path: Path) -> None:
    settings = load(path, ENVIRON, 1_800_000_000.9)
    assert settings.policy.hash == sha256(path.read_bytes()).hexdigest()[:12]
    assert settings.digest == sha256(path.read_bytes()).digest()
    assert settings.policy.created == 1_800_000_000


def test_minimal_file_of_the_contract() -> None:
    settings = load(GOOD / "contract.yaml", {}, 0.0)
    policy = settings.policy
    assert (settings.listen, settings.admin) == (Address("127.0.0.1", 7080), Address("127.0.0.1", 7081))
    assert settings.log_level == "info"
    replicas = (Replica("127.0.0.1:9001", "127.0.0.1", 9001), Replica("127.0.0.1:9002", "127.0.0.1", 9002))
    assert policy.pools == {"main": Pool("main", "vllm", replicas)}
    assert policy.models == {"m": Model("m", "main", timeouts=Timeouts(first_byte_for_whole=True))}
    assert policy.tenants == {digest("key-A"): Tenant("a"), digest("key-B"): Tenant("b", None, 8, 600, 100_000)}
    assert policy.limits == Limits()


def test_every_setting_arrives() -> None:
    settings = load(GOOD / "everything.yaml", ENVIRON, 0.0)
    policy = settings.policy
    assert (settings.listen, settings.admin) == (Address("::", 7080), Address("localhost", 7081))
    assert settings.log_level == "warning"
    main = policy.pools["main"]
    assert (main.engine, main.max_in_flight, main.queue_size, main.max_attempts) == ("sglang", 64, 0, 2)
    assert main.breaker == BreakerPolicy(3, 2.5)
    assert main.timeouts == Timeouts(1, 60, 20, 300)
    first, second = main.replicas
    assert asdict(first) == {
        "name": "engine-1.example:443/base",
        "host": "engine-1.example",
        "port": 443,
        "tls": True,
        "base_path": "/base",
        "query": "key=CANARY&x=1",
        "authorization": "Bearer sk-CANARY-2",
    }
    assert second == Replica("[::1]:9002", "::1", 9002, authorization="Bearer sk-CANARY-2")
    assert policy.pools["second.pool"].replicas[0].authorization == "Basic dXNlcjpwYXNzOndvcmQ="
    assert policy.limits == Limits(1_048_576, 16_384, 5, 30, 10, 100, 64, 1_048_576)
    assert policy.stream == Stream(0, 5, 0)
    assert policy.shutdown == Shutdown(5, 30)
    assert policy.cors_origins == {"https://example.org", "http://localhost:3000"}
    secrets = (SECRET.encode(), b"0123456789abcdef0123456789abcdef")
    assert policy.resume == Resume(secrets, 60, configured=True)
    assert policy.trusted_proxies == ("10.0.0.0/8", "::1", "192.0.2.1")
    tenant = Tenant("a@example.org", frozenset({"on", "org/model:7b"}), 8, 600, 100_000)
    keys = ("0123456789abcdef0123456789abcdef", "foo", "sk-CANARY-1-long-enough")
    assert policy.tenants == {digest(key): tenant for key in keys}


def test_model_names_are_taken_as_written() -> None:
    models = load(GOOD / "everything.yaml", ENVIRON, 0.0).policy.models
    assert list(models) == ["org/model:7b", "模型", "3.5", "on"]
    assert models["org/model:7b"].upstream_model == "org/Model-7B"
    assert models["org/model:7b"].fallback == ("模型", "3.5")
    assert models["org/model:7b"].degrade == Degrade("模型", 120)
    assert models["on"].degrade is None


def test_timeouts_merge_field_by_field() -> None:
    models = load(GOOD / "everything.yaml", ENVIRON, 0.0).policy.models
    # connect_s from the pool, first_byte_s by default, stall_s and total_s from the model
    assert models["org/model:7b"].timeouts == Timeouts(1, 60, 30, 1200, learned=False)
    assert models["模型"].timeouts == Timeouts(2, 60, 15, 300)


@pytest.mark.parametrize(
    ("where", "binds"),
    [
        ("timeouts: {first_byte_s: 60}", True),
        ("timeouts: {stall_s: 15}", False),
        ("models: {m: {pool: main, timeouts: {first_byte_s: 60}}}", True),
        ("models: {m: {pool: main, timeouts: {first_byte_s: null}}}", False),
    ],
)
def test_a_written_first_byte_deadline_binds_whole_answers(where: str, binds: bool) -> None:
    text = SMALLEST if where.startswith("timeouts") else SMALLEST.replace("models: {m: {pool: main}}\n", "")
    assert parse(text + where).policy.models["m"].timeouts.first_byte_for_whole is binds


def test_defaults_are_those_of_the_policy() -> None:
    policy = parse(SMALLEST).policy
    assert policy.limits == Limits() and policy.stream == Stream() and policy.shutdown == Shutdown()
    assert policy.models["m"].timeouts == Timeouts()
    assert policy.pools["main"] == Pool("main", "vllm", policy.pools["main"].replicas)


@pytest.mark.parametrize(
    ("section", "struct"),
    [
        (schema.EdgeLimits, Limits),
        (schema.StreamSettings, Stream),
        (schema.ShutdownSettings, Shutdown),
        (schema.BreakerSettings, BreakerPolicy),
        (schema.TimeoutSettings, Timeouts),
        (schema.TimeoutOverrides, Timeouts),
    ],
)
def test_the_schema_has_every_field_of_the_policy(section: type[schema.Section], struct: type) -> None:
    derived = {"first_byte_for_whole"}
    assert set(section.model_fields) == {field.name for field in fields(struct)} - derived


def test_command_line_goes_before_the_file() -> None:
    settings = load(GOOD / "contract.yaml", {}, 0.0, listen=Address("localhost", 1), admin=Address("::1", 2))
    assert (settings.listen, settings.admin) == (Address("localhost", 1), Address("::1", 2))


@pytest.mark.parametrize("how", ["listen", "bound"])
def test_a_reachable_address_outside_the_file_counts_too(how: str) -> None:
    address = Address("0.0.0.0", 7080)
    with pytest.raises(ConfigError, match=r"other machines reach 0\.0\.0\.0:7080, and there are no tenants"):
        parse(SMALLEST, listen=address if how == "listen" else None, bound=address if how == "bound" else None)
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        parse(SMALLEST + "tenants: [{name: a, keys: [key-A]}]", bound=address)


def test_a_short_key_from_the_environment_counts_too() -> None:
    text = SMALLEST + "listen: 0.0.0.0:1\ntenants: [{name: a, keys: [env:K]}]"
    assert parse_file(text.encode(), "f", {"K": "x" * 16}, 0.0, Pinned()).policy.tenants
    with pytest.raises(ConfigError, match="fewer than 16 characters"):
        parse_file(text.encode(), "f", {"K": "x" * 15}, 0.0, Pinned())


def test_secrets_are_in_no_representation() -> None:
    settings = load(GOOD / "everything.yaml", ENVIRON, 0.0)
    shown = f"{settings!r} {settings.policy.pools!r} {settings.policy.tenants!r} {settings.policy.resume!r}"
    assert "CANARY" not in shown and "dXNlcj" not in shown
    sections = schema.FileSettings.model_validate(
        {"tenants": [{"name": "a", "keys": ["CANARY"]}]}
        | {"pools": {"p": {"engine": "vllm", "api_key": "CANARY", "replicas": [{"url": "http://u:CANARY@h"}]}}}
    )
    assert "CANARY" not in repr(sections)


def test_what_is_not_utf_8_is_refused_with_its_line() -> None:
    assert faults_of(b"listen: 127.0.0.1:1\nadmin: \xff\n") == ["f.yaml:2: file: is not UTF-8; save it as UTF-8"]


def test_a_byte_order_mark_is_fine() -> None:
    assert parse("\ufeff" + SMALLEST).policy.models


def test_a_file_over_the_bound_is_refused_and_one_at_the_bound_is_not(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(SMALLEST + "#".ljust(MAX_BYTES - len(SMALLEST), "x"))
    assert load(path, {}, 0.0).policy.models
    path.write_text(path.read_text() + "x")
    with pytest.raises(ConfigError, match="f.yaml:1: file: is larger than 1048576 bytes"):
        load(path, {}, 0.0)
    path.write_text(path.read_text() + "x" * 1000)
    assert len(read_file(path)) == MAX_BYTES + 1


def test_the_number_of_shown_faults_is_bounded() -> None:
    faults = faults_of("models:\n" + "".join(f"  m{n}: {{pool: none}}\n" for n in range(150)))
    assert len(faults) == 101
    assert faults[100].endswith("51 more faults; mend these first")


def test_many_entries_are_fine_and_a_long_chain_of_fallbacks_too() -> None:
    chain = "".join(f"  m{n}: {{pool: main, fallback: [m{n + 1}]}}\n" for n in range(1500))
    assert len(
        parse(SMALLEST.replace("models: {m: {pool: main}}", f"models:\n{chain}  m1500: {{pool: main}}")).policy.models
    )


def test_a_missing_file_a_folder_and_a_pipe_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, text in {
        "gone.yaml": "cannot be read: No such file or directory; check the path",
        ".": "is not a regular file; name a file",
        "pipe": "is not a regular file; name a file",
        "a\0b": "cannot be read: its name holds a zero byte",
    }.items():
        with pytest.raises(ConfigError) as caught:
            load(tmp_path / name, {}, 0.0)
        assert caught.value.faults[0].startswith(f"{tmp_path / name}:1: file: {text}")


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(SMALLEST)

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match="cannot be read: Permission denied"):
        load(path, {}, 0.0)


def test_running_without_a_file_is_keyless_and_local() -> None:
    pool = Pool("p", "openai", (Replica("h:1", "h", 1),))
    model = Model("m", "p")
    settings = default_settings(Address("127.0.0.1", 0), Address("::1", 0), {"p": pool}, {"m": model}, 5.5)
    assert settings.policy.pools == {"p": pool} and settings.policy.models == {"m": model}
    assert settings.policy.tenants == {} and settings.policy.created == 5 and len(settings.policy.hash) == 12
    with pytest.raises(ConfigError, match="without a file there are no keys"):
        default_settings(Address("0.0.0.0", 7080), Address("::1", 0), {"p": pool}, {"m": model})


def test_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TEST", "1")
    seen = environment()
    monkeypatch.delenv("FOREBAY_TEST")
    assert seen["FOREBAY_TEST"] == "1"
