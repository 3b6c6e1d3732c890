"""Protects what `pagefleet bench` reads and writes of guidellm's and inference-perf's formats: loads keep their rates and lengths, a load
that cannot be kept is refused by its field, every other field left out is named, and a verdict on percentiles is no bolder than they allow."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.bench import baseline, exports, loads
from pagefleet_cli.bench.compare import Finding, difference_to, throughput_to
from pagefleet_cli.bench.profile import Prefix, Profile, ProfileError, Spread, Stage, dump, parse, plan
from pagefleet_cli.bench.report import compared
from pagefleet_cli.bench.requests import Sample
from pagefleet_cli.bench.run import Run
from pagefleet_cli.bench.store import SavedRun
from pagefleet_cli.main import app

CONFIG: dict[str, Any] = {
    "load": {"type": "constant", "interval": 5, "stages": [{"rate": 2, "duration": 30}, {"rate": 8, "duration": 15}]},
    "api": {"type": "chat", "streaming": True, "headers": {"x-team": "a"}},
    "server": {"type": "vllm", "model_name": "tiny", "base_url": "http://127.0.0.1:8000", "ignore_eos": False},
    "data": {
        "type": "random",
        "input_distribution": {"type": "uniform", "min": 20, "max": 40},
        "output_distribution": {"mean": 30, "std_dev": 4, "min": 10, "max": 50, "total_count": 100},
    },
    "report": {"request_lifecycle": {"per_request": True}},
}
SCENARIO: dict[str, Any] = {
    "spec": {
        "profile": {"kind": "constant", "rate": [1.0, 4.0], "max_concurrency": 64},
        "constraints": [{"kind": "max_duration", "seconds": 20}, {"kind": "max_requests", "count": 40}],
        "backend": {"kind": "openai_http", "target": "http://127.0.0.1:8000", "model": "tiny"},
        "data": [{"kind": "synthetic_text", "prompt_tokens": 100, "prompt_tokens_stdev": 10, "output_tokens": 8,
                  "output_tokens_min": 4, "output_tokens_max": 12, "prefix_tokens": 16, "prefix_count": 2}],
        "seed": {"kind": "static", "value": 7},
    }
}  # fmt: skip


def changed(document: dict[str, Any], path: str, value: object) -> str:
    copy: Any = json.loads(json.dumps(document))
    at = copy
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        at = at[part]
    at[last] = value
    return json.dumps(copy)


def test_a_config_of_inference_perf_keeps_its_stages_and_lengths() -> None:
    load = loads.read(json.dumps(CONFIG))
    assert load.profile.stages == (Stage(2, 30), Stage(8, 15))
    assert (load.url, load.model, load.chat, load.ignore_eos) == ("http://127.0.0.1:8000", "tiny", True, False)
    assert load.left == (
        "api.headers.x-team", "server.type", "data.output_distribution.total_count", "report.request_lifecycle.per_request",
    )  # fmt: skip
    planned = plan(load.profile)
    assert (len(planned), load.profile.requests) == (180, 180)
    assert sum(entry.at <= 30 for entry in planned) == 60
    assert all(entry.at <= 30 or 35 <= entry.at <= 50 for entry in planned)
    assert [entry.at for entry in planned] == sorted(entry.at for entry in planned)
    assert {20 <= entry.prompt_tokens <= 40 for entry in planned} == {True}
    answers = [entry.output_tokens for entry in planned]
    assert sum(answers) / len(answers) == pytest.approx(30, abs=1.5)
    assert max(answers) > min(answers)


def test_a_scenario_of_guidellm_keeps_rates_limits_prefixes_and_lengths() -> None:
    load = loads.read(json.dumps(SCENARIO))
    assert load.profile.stages == (Stage(1.0, 20), Stage(4.0, 10.0)), "whichever limit ends first"
    assert load.profile.prompt_tokens == Spread("normal", 100, 10, 50, 150)
    assert load.profile.output_tokens == Spread("uniform", 8, 0, 4, 12)
    assert (load.profile.prefix, load.profile.seed) == (Prefix(2, 16), 7)
    assert load.left == ("spec.profile.kind (arrivals are a Poisson process)", "spec.profile.max_concurrency")
    beginnings = {" ".join(entry.prompt.split()[:16]) for entry in plan(load.profile)}
    assert len(beginnings) == 2


def test_data_options_of_guidellm_leave_the_rate_to_ours() -> None:
    load = loads.read("kind=synthetic_text,prompt_tokens=64,output_tokens=16,output_tokens_stdev=2,delay=3")
    assert load.profile.prompt_tokens == Spread("fixed", 64, 0, 64, 64)
    assert load.profile.output_tokens == Spread("normal", 16, 2, 6, 26)
    assert (load.profile.rate, load.left) == (5.0, ("delay",))


def test_shared_prefixes_of_inference_perf_are_kept() -> None:
    shared = {
        "num_unique_system_prompts": 3,
        "num_users_per_system_prompt": 5,
        "system_prompt_len": 20,
        "output_len": 9,
    }
    load = loads.read(changed(CONFIG, "data", {"type": "shared_prefix", "shared_prefix": shared}))
    assert load.profile.prefix == Prefix(3, 20)
    assert load.profile.prompt_tokens == Spread("fixed", 50, 0, 50, 50)
    assert load.profile.output_tokens == Spread("fixed", 9, 0, 9, 9)
    assert "data.shared_prefix.num_users_per_system_prompt (no prompt is sent twice)" in load.left
    planned = plan(load.profile)
    assert {entry.prompt_tokens for entry in planned} == {70}
    assert len({" ".join(entry.prompt.split()[:20]) for entry in planned}) == 3
    assert len({entry.prompt for entry in planned}) == len(planned)


@pytest.mark.parametrize(
    ("document", "path", "value", "message"),
    [
        (CONFIG, "load.type", "concurrent", "load.type must be constant or poisson"),
        (CONFIG, "load.sweep", {"type": "linear"}, "load.sweep"),
        (CONFIG, "load.stages", [], "load.stages"),
        (CONFIG, "load.stages.0.rate", "fast", r"load.stages\[0\].rate must be a number"),
        (CONFIG, "load.stages.1", 3, r"load.stages\[1\] must be an object"),
        (CONFIG, "data.type", "shareGPT", "data.type must be random, synthetic or shared_prefix"),
        (CONFIG, "data.input_distribution.type", "poisson", "data.input_distribution.type must be one of"),
        (CONFIG, "data.input_distribution.min", 50, "promptTokens.min"),
        (CONFIG, "api.type", "anthropic_messages", "api.type must be completion or chat"),
        (SCENARIO, "spec.profile.kind", "sweep", "spec.profile.kind must be"),
        (SCENARIO, "spec.constraints", [], "max_duration or max_requests"),
        (SCENARIO, "spec.profile.rate", [1.0, -1], "spec.profile.rate must be above 0"),
        (SCENARIO, "spec.data", [], "spec.data must be a list of one"),
        (SCENARIO, "spec.data.0.kind", "huggingface", r"spec.data\[0\].kind must be synthetic_text"),
        (SCENARIO, "spec.data.0.turns", 3, r"spec.data\[0\].turns"),
        (SCENARIO, "spec.data.0.output_tokens", None, r"spec.data\[0\].output_tokens"),
    ],
)
def test_a_load_that_cannot_be_kept_is_refused_by_its_field(
    document: dict[str, Any], path: str, value: object, message: str
) -> None:
    with pytest.raises(ProfileError, match=message):
        loads.read(changed(document, path, value))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"stages": [{"rate": 1, "seconds": 5}], "rate": 3}', "stages cannot be given together"),
        ('{"stages": [{"rate": 1, "seconds": 0.5}]}', r"stages\[0\].seconds"),
        ('{"stages": 3}', "stages must be a list"),
        ('{"pause": -1}', "pause must be"),
        ('{"prefix": {"count": 0, "tokens": 3}}', "prefix.count"),
        ('{"promptTokens": {"distribution": "zipf", "mean": 3, "min": 1, "max": 9}}', "promptTokens.distribution"),
        ('{"promptTokens": {"distribution": "normal", "mean": 30, "min": 1, "max": 9}}', "promptTokens.mean"),
        ("a: [", "neither JSON nor YAML"),
    ],
)
def test_a_mistaken_stage_or_distribution_names_its_field(text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        loads.read(text)


def test_a_foreign_load_is_stored_and_read_again() -> None:
    for document in (CONFIG, SCENARIO):
        profile = loads.read(json.dumps(document)).profile
        assert parse(json.dumps(dump(profile))) == profile


def a_run(seed: int, factor: float = 1.0, count: int = 600, failures: int = 3) -> Run:
    source, samples = random.Random(seed), []
    for number in range(count):
        ttft = factor * source.lognormvariate(-2, 0.3)
        error = "HTTP 503" if number < failures else ""
        samples.append(Sample(0.1 * number, 0.001, ttft, 0.01 * factor, ttft + 0.3 * factor, 40, 31, error))
    return Run(tuple(samples), 0.1 * count + 1)


def saved(run: Run, profile: Profile | None = None) -> SavedRun:
    return SavedRun(run, profile or Profile(), "http://x/v1", "tiny", "2026-11-14T10:00:00+00:00")


def test_a_report_of_guidellm_becomes_the_run_that_it_was(tmp_path: Path) -> None:
    run = a_run(1)
    left = exports.guidellm(tmp_path / "benchmarks.json", saved(run))
    assert "tool_call" in left
    read = baseline.read(tmp_path / "benchmarks.json")
    assert isinstance(read.before, Run)
    assert read.notes == ()
    for then, now in zip(run.samples, read.before.samples, strict=True):
        assert (now.ttft, now.tpot, now.e2e) == pytest.approx((then.ttft, then.tpot, then.e2e), abs=1e-5)
        assert (now.prompt_tokens, now.output_tokens, now.error) == (then.prompt_tokens, then.output_tokens, then.error)
    metrics = json.loads((tmp_path / "benchmarks.json").read_text())["benchmarks"][0]["metrics"]
    assert metrics["request_totals"] == {"successful": 597, "errored": 3, "incomplete": 0, "total": 600}
    assert metrics["requests_per_second"]["successful"]["mean"] == pytest.approx(597 / run.seconds)
    assert metrics["request_concurrency"]["total"]["mean"] == pytest.approx(
        sum(one.e2e - one.late for one in run.samples) / run.seconds
    )
    findings = [change.finding for _, change in compared(read.before, a_run(2, 1.5))]
    assert findings == [Finding.SLOWER] * 6


def test_a_request_of_guidellm_counts_from_when_it_was_meant_to_be_sent(tmp_path: Path) -> None:
    """Its latencies begin at the sending: 2 s late are 2 s more in ours. Without the intended time the report is noted."""
    file = tmp_path / "g.json"
    exports.guidellm(file, saved(a_run(1, count=3, failures=0)))
    document = json.loads(file.read_text())
    requests = document["benchmarks"][0]["requests"]["successful"]
    short = requests[0]["info"]["timings"]["first_token_iteration"] - requests[0]["info"]["timings"]["request_start"]
    requests[0]["info"]["timings"]["targeted_start"] -= 2
    requests[1]["info"]["timings"]["targeted_start"] = None
    document["benchmarks"][0]["metrics"]["request_totals"]["incomplete"] = 4
    requests.pop()
    file.write_text(json.dumps(document))
    read = baseline.read(file)
    assert isinstance(read.before, Run)
    assert read.before.samples[0].ttft == pytest.approx(short + 2)
    assert [note.split()[0] for note in read.notes] == ["latencies", "4", "the"]


def test_reports_of_inference_perf_have_a_summary_and_every_stage(tmp_path: Path) -> None:
    run, profile = a_run(1), Profile(600, 10.0, stages=(Stage(10, 20), Stage(10, 39.99)))
    assert "inter_token_latency (gaps between single tokens)" in exports.inference_perf(tmp_path, saved(run, profile))
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [f"{name}_lifecycle_metrics.json" for name in ("stage_0", "stage_1", "summary")]
    stage = json.loads((tmp_path / names[0]).read_text())
    assert stage["load_summary"]["count"] == 201
    assert stage["load_summary"]["requested_rate"] == 10
    assert stage["load_summary"]["achieved_rate"] == pytest.approx(10, rel=0.01)
    assert {name for name, value in stage["successes"]["throughput"].items() if value is None} == {
        "images_per_sec", "videos_per_sec", "audios_per_sec",
    }  # fmt: skip
    assert stage["failures"]["by_label"] == {"HTTP 503": {"count": 3, "messages": []}}
    assert stage["successes"]["output_tokens"]["total"] == 198 * 31


def test_percentiles_alone_still_have_a_verdict_and_equal_runs_differ_rarely(tmp_path: Path) -> None:
    exports.inference_perf(tmp_path, saved(a_run(1)))
    read = baseline.read(tmp_path)
    assert isinstance(read.before, baseline.Summary)
    assert (read.before.requests, read.before.failed) == (600, 3)
    assert "percentiles only" in read.notes[0]
    assert [change.finding for _, change in compared(read.before, a_run(2, 1.5))] == [Finding.SLOWER] * 6
    assert [change.finding for _, change in compared(read.before, a_run(2, 0.6))] == [Finding.FASTER] * 6
    called = []
    for seed in range(12):
        exports.inference_perf(tmp_path, saved(a_run(10 + 2 * seed)))
        before = baseline.read(tmp_path).before
        called += [change.finding for name, change in compared(before, a_run(11 + 2 * seed)) if name != "tpot"]
    assert sum(finding is not Finding.SAME for finding in called) <= 1, "of 48, 0.48 are expected"
    assert throughput_to(read.before.tokens_per_second, a_run(3)).finding is Finding.SAME
    assert throughput_to(2 * read.before.tokens_per_second, a_run(3)).finding is Finding.LESS


def test_few_requests_or_missing_percentiles_prove_nothing(tmp_path: Path) -> None:
    exports.inference_perf(tmp_path, saved(a_run(1, count=60)))
    few = dict(enumerate(change for _, change in compared(baseline.read(tmp_path).before, a_run(2, 9.0))))
    assert [few[number].finding for number in (1, 3, 5)] == [Finding.UNKNOWN] * 3, "p95 needs 100"
    file = tmp_path / baseline.SUMMARY
    document = json.loads(file.read_text())
    document["successes"]["latency"]["time_to_first_token"] = None
    file.write_text(json.dumps(document))
    read = baseline.read(file)
    assert any("time_to_first_token is missing" in note for note in read.notes)
    assert compared(read.before, a_run(2))[0][1].finding is Finding.UNKNOWN
    assert difference_to(0.0, (0.0, 0.0), [1.0] * 500, 0.5).finding is Finding.UNKNOWN


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "neither guidellm"), ("[", "cannot be read"), ('{"successes": {}}', "cannot be read"),
        ('{"benchmarks": [{}, {}]}', "2 benchmarks"), ('{"benchmarks": [{}]}', "cannot be read"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_report_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "report.json"
    file.write_text(text)
    with pytest.raises(CommandError, match=message):
        baseline.read(file)
    with pytest.raises(CommandError, match="No such file"):
        baseline.read(tmp_path / "missing.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prompt_tokens=[", "neither JSON nor YAML"), ("{seed: 2026-13-45}", "neither JSON nor YAML"),
        ("prompt_tokens=5,output_tokens=5,prefix_buckets=3", "prefix_buckets must be a list"),
        ("{prompt_tokens: 5, output_tokens: 5, prefix_buckets: [3]}", "prefix_buckets must be a list"),
        ("spec: {profile: {kind: poisson, rate: 1}, data: [{prompt_tokens: 4, output_tokens: 4}], constraints: 4}", "spec.constraints"),
    ],
)  # fmt: skip
def test_a_profile_of_another_form_names_its_field(text: str, message: str) -> None:
    with pytest.raises(ProfileError, match=message):
        loads.read(text)


DIGITS = "1" + "0" * 400  # more than a float can hold
LOAD = "load: {stages: [{rate: 1, duration: 10}]}\n"


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ('{"stages": [{"rate": 5, "seconds": 1e308}]}', "seconds"), ('{"stages": [{"rate": 1e306, "seconds": 9e6}]}', "rate"),
        (f'{{"rate": {DIGITS}}}', "rate"), (f'{{"promptTokens": {{"median": {DIGITS}}}}}', "promptTokens.median"),
        ('{"outputTokens": {"distribution": "lognormal", "mean": 10, "stdDev": 1e308, "max": 100}}', "outputTokens.stdDev"),
        (f"prompt_tokens: 10\noutput_tokens: {DIGITS}", "output_tokens"), ("[" * 5000, "neither JSON nor YAML"),
        (LOAD + "data: {type: random, input_distribution: {type: fixed, mean: .inf}}", "input_distribution.mean"),
        (changed(SCENARIO, "spec.constraints.1.count", int(DIGITS)), "constraints.*count"),
    ],
)  # fmt: skip
def test_a_number_that_no_load_can_have_names_its_field(text: str, field: str) -> None:
    """The command ended with a traceback, and the Job of a load test with it."""
    with pytest.raises(ProfileError, match=field):
        loads.read(text)


@pytest.mark.parametrize(
    ("options", "said"), [(("--timeout", "inf"), "--timeout"), (("--prompt-tokens", DIGITS), "promptTokens.max")]
)
def test_an_option_that_no_load_can_have_is_named(options: tuple[str, ...], said: str) -> None:
    done = CliRunner().invoke(app, ["bench", "--url", "http://127.0.0.1:1", "--model", "m", *options])
    assert (done.exit_code, said in done.output) == (1, True), done.output
