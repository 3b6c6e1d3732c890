"""Protects what `pagefleet bench` sends (profile, arrivals, lengths), what it makes of samples (quantiles, the compact
result), and that a comparison finds real differences and no others."""

from __future__ import annotations

import itertools
import json
import math
import pickle
import random
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench import result, store
from pagefleet_cli.bench.compare import Finding, difference, failures, sentence, throughput
from pagefleet_cli.bench.profile import Lengths, Profile, ProfileError, draw, dump, parse, plan
from pagefleet_cli.bench.report import comparison, plot
from pagefleet_cli.bench.requests import Endpoint, Sample, base
from pagefleet_cli.bench.result import MAX_BYTES, compact, errors, quantile, values, written
from pagefleet_cli.bench.run import Run
from pagefleet_cli.bench.target import address
from pagefleet_contract import sketch


def sample(e2e: float, error: str = "", ttft: float | None = 0.1, at: float = 0.0) -> Sample:
    return Sample(at, 0.0, ttft, 0.01, e2e, 10, 5, error)


def test_an_empty_profile_is_the_contract_s_default() -> None:
    assert dump(parse("{}")) == {
        "requests": 200, "rate": 5.0, "promptTokens": {"median": 96, "sigma": 0.8, "max": 512},
        "outputTokens": {"median": 64, "sigma": 0.8, "max": 256}, "seed": 0,
    }  # fmt: skip
    assert parse(json.dumps(dump(parse('{"rate": 2}')))).rate == 2


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"rate": 0}', "rate"), ('{"rate": NaN}', "rate"), ('{"requests": 0}', "requests"), ('{"requests": 1.5}', "requests"),
        ('{"speed": 1}', "fields of"), ('{"promptTokens": {"median": 900}}', "promptTokens.median"),
        ('{"outputTokens": {"sigma": -1}}', "outputTokens.sigma"), ('{"outputTokens": 5}', "outputTokens"),
        ('{"outputTokens": {"mean": 5}}', "outputTokens"), ("[]", "object"), ("{", "JSON"),
        ('{"temperature": 2.1}', "temperature"), ('{"temperature": "hot"}', "temperature"),
    ],
)  # fmt: skip
def test_a_mistaken_profile_names_its_field(text: str, field: str) -> None:
    with pytest.raises(ProfileError, match=field):
        parse(text)


def test_a_temperature_is_sent_with_every_request_and_changes_no_other_number() -> None:
    load = parse('{"temperature": 0.7, "requests": 20, "promptTokens": {"median": 1000, "sigma": 0, "max": 1000}}')
    assert dump(load)["temperature"] == 0.7
    endpoint = Endpoint("http://x/v1", "m")
    planned = plan(load)
    assert {endpoint.body(entry)["temperature"] for entry in planned} == {0.7}
    assert {entry.prompt_tokens for entry in planned} == {1000}, "sigma 0: every prompt has the median"
    without = plan(replace(load, temperature=None))
    assert [(entry.at, entry.prompt) for entry in planned] == [(entry.at, entry.prompt) for entry in without]
    assert "temperature" not in endpoint.body(without[0])


def test_a_long_load_fits_into_the_small_pod_of_a_load_test() -> None:
    """A million words take a byte each; as text they took more than five, and some hundred million of them are a load that a step may ask
    for."""
    planned = plan(Profile(requests=50, prompt_tokens=Lengths(20_000, 0, 20_000)))
    assert {entry.prompt.count(" ") for entry in planned} == {19_999}
    assert sum(len(pickle.dumps(entry)) for entry in planned) < 1.1e6


def test_arrivals_are_a_poisson_process_of_the_rate() -> None:
    """20,000 gaps of mean 1/8 s: mean and standard deviation within 5 standard errors, and the same for the same seed."""
    profile = Profile(requests=20_000, rate=8.0, prompt_tokens=Lengths(1, 0, 1), output_tokens=Lengths(1, 0, 1), seed=3)
    times = [entry.at for entry in plan(profile)]
    gaps = [after - before for before, after in zip([0.0, *times], times, strict=False)]
    mean = sum(gaps) / len(gaps)
    deviation = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps))
    assert mean == pytest.approx(1 / 8, rel=5 / math.sqrt(20_000))
    assert deviation == pytest.approx(1 / 8, rel=0.06)
    assert plan(profile) == plan(profile)


def test_lengths_are_lognormal_and_not_piled_up_at_the_maximum() -> None:
    source, lengths = random.Random(1), Lengths(96, 0.8, 512)
    drawn = sorted(draw(source, lengths) for _ in range(20_000))
    assert drawn[len(drawn) // 2] == pytest.approx(94, abs=4)  # the cut takes 1.8 % of the upper tail away
    assert drawn[-1] <= 512
    assert drawn.count(512) < 20
    logs = [math.log(value) for value in drawn if value > 2]
    mean = sum(logs) / len(logs)
    assert math.sqrt(sum((one - mean) ** 2 for one in logs) / len(logs)) == pytest.approx(0.76, abs=0.04)
    assert {draw(source, Lengths(7, 0, 7)) for _ in range(5)} == {7}


def test_no_two_prompts_begin_alike() -> None:
    beginnings = [" ".join(entry.prompt.split()[:12]) for entry in plan(Profile(prompt_tokens=Lengths(50, 0, 50)))]
    assert len(set(beginnings)) == len(beginnings)


def test_quantiles_leave_failed_requests_out() -> None:
    samples = [sample(float(second)) for second in range(1, 101)] + [sample(0.001, "timeout"), sample(0.002, "timeout")]
    seconds = values(samples, "e2e")
    assert (quantile(seconds, 0.5), quantile(seconds, 0.95), quantile(seconds, 1.0)) == (50, 95, 100)
    assert quantile([], 0.5) is None
    assert errors([*samples, sample(1, "HTTP 503")]) == {"timeout": 2, "HTTP 503": 1}


def test_the_compact_result_fits_and_never_flatters() -> None:
    """5,000 requests over five decades: the termination message holds them, and no quantile reads lower than it was."""
    source = random.Random(2)
    samples = [
        Sample(0, 0, source.lognormvariate(-1, 2), source.lognormvariate(-4, 2), source.lognormvariate(1, 2), 9, 9)
        for _ in range(5_000)
    ]
    document = json.loads(written(compact(Run(tuple(samples), 100.0))))
    assert len(written(document)) <= MAX_BYTES
    assert document["requests"] == 5_000
    assert document["outputTokensPerSecond"] == 450
    coarse = document["coarse"]
    for signal in ("ttft", "tpot", "e2e"):
        histogram = {int(bucket): count for bucket, count in document[signal].items()}
        assert sketch.total(histogram) == 5_000
        for q in (0.5, 0.95):
            exact, read = quantile(values(samples, signal), q), sketch.quantile(histogram, q)
            assert exact is not None
            assert read is not None
            assert exact <= read <= exact * 1.02**coarse * (1 + 1e-9)


def test_a_small_result_is_not_made_coarse() -> None:
    document = compact(Run((sample(1.0), sample(1.0, "timeout", None)), 2.0))
    assert "coarse" not in document
    assert (document["requests"], document["errors"], document["seconds"]) == (2, 1, 2.0)
    assert document["e2e"] == {str(sketch.bucket_of(1.0)): 1}


def latencies(count: int, seed: int, factor: float = 1.0) -> list[float]:
    source = random.Random(seed)
    return [factor * source.lognormvariate(-1, 0.5) for _ in range(count)]


def correlated(count: int, seed: int) -> list[float]:
    """Return latencies of a queue. The logarithm of each is 0.8 of the one before plus noise."""
    source, level, latencies_made = random.Random(seed), 0.0, []
    for _ in range(count):
        level = 0.8 * level + source.gauss(0, 0.3)
        latencies_made.append(math.exp(level))
    return latencies_made


def test_a_real_difference_is_found_and_its_size_is_in_the_interval() -> None:
    result = difference(latencies(2000, 1), latencies(2000, 2, 1.3), 0.95)
    assert result.finding is Finding.SLOWER
    assert result.low is not None
    assert result.high is not None
    assert result.low < 0.3 < result.high
    assert result.evidence > 100
    assert "slower" in sentence("TTFT", result)
    assert difference(latencies(2000, 2, 1.3), latencies(2000, 1), 0.95).finding is Finding.FASTER


def test_answers_in_one_piece_are_compared_too() -> None:
    """They have no time between their tokens. With half of them such a resample may have a median of 0, and the run ended in a traceback."""
    source, before, after = random.Random(1), [0.0] * 46 + [0.01] * 54, [0.0] * 40 + [0.012] * 60
    source.shuffle(before)
    source.shuffle(after)
    found = difference(before, after, 0.5)
    assert (found.low, found.high, found.finding) == (-1.0, math.inf, Finding.SAME)
    assert "no difference shown" in sentence("TPOT", found)


def test_equal_runs_are_rarely_called_different() -> None:
    """12 pairs of equal runs each: at 99 % 0.12 are expected. Of correlated requests, drawing them one by one called 33 of
    100 pairs different, drawing blocks 2."""
    for make in (latencies, correlated):
        called = [
            difference(make(300, 2 * seed), make(300, 2 * seed + 1), 0.5, seed).finding is not Finding.SAME
            for seed in range(12)
        ]
        assert sum(called) <= 1


def answered(seed: int, tokens: float, seconds: float = 60.0) -> Run:
    """A run of 300 requests whose answers have so many tokens in the mean."""
    source = random.Random(seed)
    ats = sorted(source.uniform(0, seconds - 1) for _ in range(300))
    samples = (Sample(at, 0.0, 0.1, 0.01, 0.5, 10, round(source.gauss(tokens, 3))) for at in ats)
    return Run(tuple(samples), seconds)


def test_throughput_has_a_verdict_and_equal_runs_differ_rarely() -> None:
    less = throughput(answered(1, 20), answered(2, 10))
    assert less.finding is Finding.LESS
    assert less.low is not None
    assert less.high is not None
    assert less.low < -0.5 < less.high
    assert throughput(answered(1, 10), answered(2, 20)).finding is Finding.MORE
    called = [
        throughput(answered(2 * n, 20), answered(2 * n + 1, 20), n).finding is not Finding.SAME for n in range(12)
    ]
    assert sum(called) <= 1
    assert throughput(Run((), 0.0), answered(1, 20)).finding is Finding.UNKNOWN


@pytest.mark.parametrize(
    ("before", "after", "p", "finding"),
    [
        ((0, 100), (0, 100), 1.0, Finding.SAME),
        ((1, 10), (9, 10), 0.0011, Finding.MORE),
        ((9, 10), (1, 10), 0.0011, Finding.LESS),
        ((3, 4), (1, 4), 0.486, Finding.SAME),  # Fisher's lady tasting tea, two-sided
        ((0, 0), (5, 10), 1.0, Finding.UNKNOWN),
    ],
)
def test_errors_have_an_exact_verdict(
    before: tuple[int, int], after: tuple[int, int], p: float, finding: Finding
) -> None:
    found, verdict = failures(before, after)
    assert found == pytest.approx(p, rel=0.02)
    assert verdict is finding


def test_a_comparison_says_all_three() -> None:
    lines = Console(width=200, record=True, file=StringIO())
    lines.print(comparison(answered(1, 20), answered(2, 10), "last week", []))
    text = lines.export_text()
    assert "output tokens/s: " in text
    assert "with 99% confidence): less" in text
    assert "errors: 0 of 300 then, 0 of 300 now: no difference shown (p = 1)" in text


def test_too_few_requests_prove_nothing() -> None:
    result = difference(latencies(50, 1), latencies(50, 2, 9.0), 0.95)
    assert result.finding is Finding.UNKNOWN
    assert "too few" in sentence("TTFT", result)
    assert difference([], [], 0.5).finding is Finding.UNKNOWN


def test_runs_are_kept_beside_each_other_and_found_by_day(tmp_path: Path) -> None:
    def saved_run(day: int, e2e: float) -> store.SavedRun:
        run = Run((sample(e2e),), 1.0)
        return store.SavedRun(run, Profile(), "http://x/v1", "m", f"2026-11-{day:02d}T10:00:00+00:00")

    store.save("chat", saved_run(14, 1.0), tmp_path)
    store.save("chat", saved_run(21, 2.0), tmp_path)
    assert store.load("chat", tmp_path)[1].run.samples[0].e2e == 2.0
    name, loaded = store.load("chat@2026-11-20", tmp_path)
    assert (loaded.run.samples[0].e2e, name) == (1.0, "chat of 20261114T100000000000Z")
    assert loaded == saved_run(14, 1.0)
    with pytest.raises(CommandError, match="cannot be written"):
        store.save("chat", saved_run(14, 3.0), tmp_path)
    for wrong, message in (
        ("caht", "saved: chat"),
        ("chat@monday", "not a day"),
        ("../x", "not a valid name"),
        ("chat@2026-11-01", "up to"),
    ):
        with pytest.raises(CommandError, match=message):
            store.load(wrong, tmp_path)


def test_another_load_or_model_is_called_unlike() -> None:
    before = store.SavedRun(Run((), 1.0), Profile(), "http://x/v1", "m", "2026-11-14T10:00:00+00:00")
    assert store.unlike(before, "m", Profile(seed=9)) == []
    assert len(store.unlike(before, "n", Profile(rate=9.0))) == 2
    assert store.unlike(before, "m", Profile(temperature=0.7)) == ["temperature was not given, not 0.7"]
    warm = replace(before, profile=Profile(temperature=0.7))
    assert store.unlike(warm, "m", Profile()) == ["temperature was 0.7, not given"]


def test_a_plot_counts_every_value() -> None:
    lines = plot("e2e", sorted(latencies(500, 4))).plain.splitlines()[1:]
    assert sum(int(line.split()[-1]) for line in lines) == 500
    assert sum(int(line.split()[-1]) for line in plot("e2e", [1.0, 1.0]).plain.splitlines()[1:]) == 2


@pytest.mark.parametrize("url", ["http://x:1", "http://x:1/", "http://x:1/v1", "http://x:1/v1/"])
def test_a_url_is_taken_with_and_without_its_version(url: str) -> None:
    assert base(url) == "http://x:1/v1"


@pytest.mark.parametrize("letter", ["e", "\u9519", "\U0001f4a5", "\x00"])
def test_the_causes_of_failed_endpoints_fit_in_any_script(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """JSON writes six bytes for a Chinese letter and twelve for an emoji: no histogram is coarse enough to make room for them."""
    tries = itertools.count()

    def tried(document: Mapping[str, Any]) -> bytes:
        assert next(tries) < 1000, "it never ends"
        return written(document)

    monkeypatch.setattr(result, "written", tried)
    failed = {f"/v1/{number}": letter * 120 for number in range(7)}
    document = compact(Run((sample(1.0),), 1.0, failed_endpoints=failed))
    assert len(written(document)) <= MAX_BYTES
    assert set(document["failedEndpoints"]) == set(failed)


HTTP, HTTPS, PICKER = {"name": "http", "port": 80}, {"name": "https", "port": 443}, {"name": "picker", "port": 9003}


@pytest.mark.parametrize(
    ("ports", "spec", "ingress", "url"),
    [
        ([HTTP, HTTPS], {"clusterIP": "10.96.0.7"}, [], "http://10.96.0.7:80"),
        ([HTTPS, HTTP], {"clusterIP": "10.96.0.7"}, [{"hostname": "lb.example.com"}], "http://lb.example.com:80"),
        ([HTTPS, PICKER], {"clusterIP": "10.96.0.7"}, [], "https://10.96.0.7:443"),  # the component gateway-tls-only
        ([HTTP], {"clusterIP": "fd00::7"}, [], "http://[fd00::7]:80"),
        ([HTTP], {"clusterIP": "fd00::7"}, [{"ip": "2001:db8::1"}], "http://[2001:db8::1]:80"),
    ],
)
def test_the_gateways_address_is_a_url(ports: list[Any], spec: dict[str, Any], ingress: list[Any], url: str) -> None:
    assert address({"spec": {**spec, "ports": ports}, "status": {"loadBalancer": {"ingress": ingress}}}) == url


def test_a_gateway_without_an_address_is_told() -> None:
    with pytest.raises(CommandError, match="has no address"):
        address({"spec": {"clusterIP": "None", "ports": [HTTP]}})
