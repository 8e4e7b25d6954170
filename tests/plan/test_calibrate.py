"""The fit finds the speeds of an engine that is the model, and says how far off it is with one that is not."""

import socket
import subprocess
import time
from collections.abc import Iterator
from random import Random

import httpx
import pytest
from msgspec.structs import replace

from forebay.clock import SystemClock
from forebay.engines import embedded
from forebay.engines.sim.spec import SimSpec
from forebay.plan.calibrate import Effort, Error, Row, calibrate, errors, fit, mixed_load, replay
from forebay.plan.timing import Asked, Engine, EngineError, Timed

SPEC = SimSpec(
    iteration_base_ms=6.0, ms_per_prefill_token=0.2, ms_per_decode_seq=1.5, max_num_seqs=4, max_num_batched_tokens=256
)
QUICK = Effort(longest_words=32, repeats=1, output_tokens=8, held_out=4)


def rows_of(spec: SimSpec) -> list[Row]:
    """What measurements of a model would be."""
    base, prefill, decode = spec.iteration_base_ms, spec.ms_per_prefill_token, spec.ms_per_decode_seq
    lone = [
        Row(-(-tokens // 256), tokens, 0, (-(-tokens // 256) * base + tokens * prefill) / 1000)
        for tokens in (16, 64, 256, 1024)
    ]
    return lone + [Row(1, 0, streams, (base + streams * decode) / 1000) for streams in (1, 2, 4)]


def seen_by(spec: SimSpec, load: list[tuple[float, int, int]]) -> list[Timed]:
    """What a client of a model would see: the model's own times, one lone request after the other."""
    seen = []
    for sent_s, prompt_tokens, tokens in load:
        first_s = sent_s + (spec.iteration_base_ms + prompt_tokens * spec.ms_per_prefill_token) / 1000
        gap_s = (spec.iteration_base_ms + spec.ms_per_decode_seq) / 1000
        seen.append(Timed(sent_s, prompt_tokens, tuple(first_s + place * gap_s for place in range(tokens))))
    return seen


def speeds(spec: SimSpec) -> tuple[float, float, float]:
    return spec.iteration_base_ms, spec.ms_per_prefill_token, spec.ms_per_decode_seq


def test_the_speeds_of_a_model_are_found() -> None:
    fitted = fit(rows_of(SPEC), replace(SPEC, iteration_base_ms=99.0, ms_per_decode_seq=99.0))
    assert speeds(fitted) == pytest.approx(speeds(SPEC))
    assert fitted.max_num_seqs == 4


def test_noise_moves_them_a_little() -> None:
    random = Random(3)
    noisy = [replace(row, seconds=row.seconds * random.uniform(0.95, 1.05)) for row in rows_of(SPEC) * 5]
    assert speeds(fit(noisy, SPEC)) == pytest.approx(speeds(SPEC), rel=0.2)


def test_no_speed_is_below_nothing() -> None:
    # More streams took less time: the best that can be said is that a stream costs nothing.
    rows = [Row(1, 100, 0, 0.03), Row(1, 200, 0, 0.05), Row(1, 0, 1, 0.012), Row(1, 0, 4, 0.010)]
    fitted = fit(rows, SPEC)
    assert fitted.ms_per_decode_seq == 0.0
    assert fitted.iteration_base_ms == pytest.approx(11, rel=0.1)


def test_rows_that_tell_nothing_apart_are_refused() -> None:
    with pytest.raises(ValueError, match="apart"):
        fit([Row(1, 100, 0, 0.03)], SPEC)


def test_the_model_has_no_error_on_itself_and_the_known_one_on_a_slower_engine() -> None:
    load = [(0.5 * number, 20 + 10 * number, 6) for number in range(20)]
    seen = seen_by(SPEC, load)
    assert [error.name for error in errors(SPEC, seen)] == ["TTFT P50", "TTFT P90", "ITL P50", "ITL P90"]
    assert [error.error_ratio for error in errors(SPEC, seen)] == pytest.approx([0, 0, 0, 0], abs=1e-6)
    slow = replace(SPEC, iteration_base_ms=12.0, ms_per_prefill_token=0.4, ms_per_decode_seq=3.0)
    assert [error.error_ratio for error in errors(slow, seen)] == pytest.approx([1, 1, 1, 1])


def test_requests_that_meet_share_the_engine() -> None:
    seen = seen_by(SPEC, [(0.0, 100, 10), (0.0, 100, 10)])
    ttfts_s, gaps_s = replay(SPEC, seen)
    assert ttfts_s == pytest.approx([0.046, 0.046])
    assert gaps_s == pytest.approx([0.009] * 18)


def test_answers_of_one_token_have_no_gaps_to_compare() -> None:
    with pytest.raises(ValueError, match="too short"):
        errors(SPEC, seen_by(SPEC, [(0.0, 100, 1)]))


def test_the_mixed_load_has_the_lengths_and_the_pace_that_are_asked_for() -> None:
    effort = Effort(held_out=2000, utilisation_ratio=0.5)
    load = mixed_load(SPEC, 512, effort, Random(1))
    assert min(asked.words for asked in load) == 16
    assert 500 < max(asked.words for asked in load) <= 512
    assert {asked.output_tokens for asked in load} == set(range(12, 49))
    busy_s = sum(6 + 0.2 * asked.words + 3.0 * asked.output_tokens for asked in load) / 1000
    assert busy_s / load[-1].after_s == pytest.approx(0.5, rel=0.1)


def test_an_error_is_relative_to_what_was_measured() -> None:
    assert Error("TTFT P50", 2.0, 1.5).error_ratio == -0.25


@pytest.mark.parametrize("url", ["ftp://x", "127.0.0.1:8000", "http://"])
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"looks? like http://"):
        Engine(url, "m", "", SystemClock(), Random(1))


def engine_at(url: str, model: str = "sim") -> Engine:
    return Engine(url, model, "a-key", SystemClock(), Random(1))


@pytest.mark.integration
def test_an_engine_that_is_not_there_is_named() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(EngineError, match=r"no answer from 127\.0\.0\.1"):
            engine_at(f"http://127.0.0.1:{free.getsockname()[1]}").one(3, 2)


@pytest.fixture(scope="module")
def sim_url() -> Iterator[str]:
    """A simulated engine in a process of its own."""
    line = [*embedded.command(1)[:1], "-m", "forebay.cli.main", "sim", "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3]
        process.terminate()


@pytest.mark.integration
@pytest.mark.parametrize("suffix", ["", "/", "/v1"])
def test_streams_are_timed_token_by_token(sim_url: str, suffix: str) -> None:
    seen = engine_at(sim_url + suffix).together([Asked(0.0, 5, 7), Asked(0.05, 40, 3)])
    assert [len(timed.token_s) for timed in seen] == [7, 3]
    assert [len(timed.gaps_s) for timed in seen] == [6, 2]
    assert 0 < seen[0].prompt_tokens < seen[1].prompt_tokens
    assert seen[1].sent_s - seen[0].sent_s > 0.04
    assert all(timed.ttft_s > 0 for timed in seen)


@pytest.mark.integration
def test_a_refusal_of_the_engine_is_shown(sim_url: str) -> None:
    with pytest.raises(EngineError, match="404.*other"):
        engine_at(sim_url, "other").one(3, 2)


@pytest.mark.integration
def test_a_simulated_engine_is_calibrated_over_http(sim_url: str) -> None:
    steps: list[str] = []
    found = calibrate(engine_at(sim_url), replace(SPEC, max_num_seqs=2), QUICK, Random(1), steps.append)
    assert found.requests == 4
    measured = ["prompts of 16 words", "prompts of 32 words", "1 streams at once", "2 streams at once"]
    assert steps == ["warm up", *measured, "4 requests of a mixed load", *measured]
    assert found.spec.iteration_base_ms + found.spec.ms_per_decode_seq > 0
    assert found.worst_ratio == max(abs(error.error_ratio) for error in found.errors)


@pytest.mark.integration
@pytest.mark.engine
def test_llamacpp_is_calibrated() -> None:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with subprocess.Popen(embedded.command(port, slots=2), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as child:
        try:
            url = f"http://127.0.0.1:{port}"
            while True:
                assert child.poll() is None
                try:
                    if httpx.get(f"{url}/health").status_code == 200:
                        break
                except httpx.TransportError:
                    pass
                time.sleep(0.05)
            found = calibrate(engine_at(url, "default"), replace(SPEC, max_num_seqs=2), QUICK, Random(1))
        finally:
            child.kill()
    assert found.requests == 4
    assert all(error.measured_s > 0 and error.modelled_s > 0 for error in found.errors)
    assert found.spec.ms_per_prefill_token > 0
