"""Protects `pagefleet plan`'s arithmetic against values worked out by hand from published configurations, and its
refusal to confuse query heads with KV heads."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from support.model_configs import LLAMA_3_8B
from typer.testing import CliRunner

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.main import app
from pagefleet_cli.plan import memory
from pagefleet_cli.plan.accelerators import GB, Accelerator, accelerator
from pagefleet_cli.plan.memory import Load
from pagefleet_cli.plan.report import Request, lines, plan, warnings
from pagefleet_cli.plan.shape import Shape, from_config, from_sizes
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.spec.schema import structure
from pagefleet_operator.domain.spec.schema.spec import SPEC

MIXTRAL_8X7B = {
    "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_size": 4096,
    "intermediate_size": 14336, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def llama(**changed: Any) -> Shape:
    return from_config({**LLAMA_3_8B, **changed}, "llama")


def test_llama_3_8b_has_131072_bytes_per_token() -> None:
    """2 x 32 layers x 8 KV heads x 128 x 2 bytes."""
    assert memory.kv_bytes_per_token(llama(), 2) == 131072
    assert memory.kv_bytes_per_token(llama(), memory.KV["fp8"]) == 65536
    assert memory.kv_bytes_per_token(llama(), 2, heads=32) == 4 * 131072


def test_parameters_are_those_of_the_published_models() -> None:
    """Llama-3-8B 8,030,261,248; Mixtral-8x7B 46,702,792,704, of which 12.88 B meet one token."""
    assert llama().parameters == 8_030_261_248
    mixtral = from_config(MIXTRAL_8X7B, "mixtral")
    assert mixtral.parameters == 46_702_792_704
    assert mixtral.active + mixtral.others == 12_879_925_248


def test_quantised_weights_leave_embeddings_in_sixteen_bits() -> None:
    linear = 32 * (4096 * 128 * (64 + 16) + 3 * 4096 * 14336)
    others = 8_030_261_248 - linear
    assert memory.weight_bytes(llama(), "bf16", False) == 2 * 8_030_261_248
    assert memory.weight_bytes(llama(), "fp8", False) == linear + 2 * others
    assert memory.weight_bytes(llama(), "int8", False) == linear + linear // 16 + 2 * others
    assert memory.weight_bytes(llama(), "awq", False) == pytest.approx(linear * 0.51953125 + 2 * others, abs=1)


def test_pages_and_users_of_llama_3_8b_on_an_h100() -> None:
    """0.9 x 80e9 - 16,060,522,496 = 55,939,477,504 bytes: 26,674 pages of 2 MiB, 512 of which are 8,192 tokens."""
    planned = plan(llama(), accelerator("h100"), Request("bf16", "bf16", Load(8192, 4096), users=500))
    assert (planned.replica.room, planned.replica.page_bytes) == (55_939_477_504, 2 * 1024**2)
    assert (planned.replica.pages, planned.replica.users, planned.replicas) == (26_674, 52, 10)


SEVENTY_B = from_sizes(80, 64, 8, 128, 8192, 128_256, 70_600_000_000)


def test_a_replica_with_little_room_beside_its_weights_is_not_advised() -> None:
    """64 query heads, 8 KV heads: 2 H100 hold the weights and one user of 8,192 tokens, 4 hold 54."""
    planned = plan(SEVENTY_B, accelerator("H100"), Request("bf16", "bf16", Load(8192, 4096), users=100))
    assert (planned.replica.accelerators, planned.replica.users, planned.accelerators) == (4, 54, 8)
    assert planned.smaller is not None
    assert (planned.smaller.replica.accelerators, planned.smaller.accelerators) == (2, 200)
    assert "2 x H100 hold the model too, but 200 accelerators would be needed" in lines(planned)["one replica"]
    without = plan(SEVENTY_B, accelerator("H100"), Request("bf16", "bf16", Load(8192, 4096)))
    assert (without.replica.accelerators, without.smaller) == (2, None)
    given = plan(SEVENTY_B, accelerator("H100"), Request("bf16", "bf16", Load(8192, 4096), accelerators=2, users=100))
    assert given.accelerators == 200


def test_query_heads_for_kv_heads_take_eight_times_the_memory() -> None:
    assert memory.kv_bytes_per_token(SEVENTY_B, 2) == 2 * 80 * 8 * 128 * 2 == 327_680
    assert memory.kv_bytes_per_token(SEVENTY_B, 2, heads=64) == 8 * 327_680


def test_what_all_users_share_is_held_once() -> None:
    """Room 55,939,477,504 bytes; the document's 10,000 tokens take 625 pages of 2 MiB once, a user's own 370 take 24 pages."""
    planned = plan(llama(), accelerator("h100"), Request("bf16", "bf16", Load(10_370, 5185, shared=10_000), users=100))
    page = 2 * 1024**2
    assert planned.replica.users == (55_939_477_504 - 625 * page) // (24 * page) == 1085
    apart = plan(llama(), accelerator("h100"), Request("bf16", "bf16", Load(10_370, 5185), accelerators=1))
    assert apart.replica.users == 41


def test_a_page_that_is_begun_is_a_whole_page() -> None:
    assert memory.kv_bytes_per_user(llama(), 2, 17, 16) == 2 * 16 * 131072


def test_decoding_is_bound_by_what_is_read() -> None:
    """One user: weights and 4,096 tokens' cache once a step; two users share the weights."""
    planned = plan(llama(), accelerator("H100"), Request("bf16", "bf16", Load(8192, 4096)))
    arguments = (llama(), planned.replica, 2, planned.card, Load(8192, 4096))
    weights, cache = 2 * 8_030_261_248, 4096 * 131072
    assert memory.step_seconds(*arguments, 1) == pytest.approx((weights + cache) / 3350e9)
    assert memory.step_seconds(*arguments, 2) == pytest.approx((weights + 2 * cache) / 3350e9)
    assert planned.tokens_one == pytest.approx(3350e9 / (weights + cache))


def test_prompts_take_the_time_of_answers() -> None:
    """1,000 tokens through 6,979,321,856 parameters of linear layers, and 500 tokens attended to on average by 32 heads of 128 in 32 layers:
    2 x 7.0e9 + 4 x 32 x 128 x 32 x 500 operations for each."""
    load = Load(8192, 4096, prompt=1000.0, answer=250.0)
    planned = plan(llama(), accelerator("H100"), Request("bf16", "bf16", load))
    linear = 32 * (4096 * 128 * (64 + 16) + 3 * 4096 * 14336)
    one = 1000 * (2 * linear + 4 * 32 * 128 * 32 * 500) / 989e12
    assert memory.prompt_seconds(llama(), planned.replica, planned.card, load) == pytest.approx(one)
    without = plan(llama(), accelerator("H100"), Request("bf16", "bf16", Load(8192, 4096)))
    assert planned.tokens_one == without.tokens_one, "a user alone waits for the prompt once, and then decodes"
    assert planned.batch == without.batch == 52
    assert without.tokens_all is not None
    assert planned.tokens_all == pytest.approx(52 / (52 / without.tokens_all + 52 * one / 250))
    fast = plan(llama(), accelerator("H100"), Request("fp8", "bf16", load))
    assert memory.prompt_seconds(llama(), fast.replica, fast.card, load) == pytest.approx(one / 2)
    slow = plan(llama(), accelerator("A100-80GB"), Request("fp8", "bf16", load))
    assert memory.prompt_seconds(llama(), slow.replica, slow.card, load) == pytest.approx(one * 989 / 312)
    windowed = llama(sliding_window=100)
    assert memory.prompt_seconds(windowed, planned.replica, planned.card, load) == pytest.approx(
        1000 * (2 * linear + 4 * 32 * 128 * 32 * 100) / 989e12
    )


def test_tpot_limits_the_batch_to_the_last_step_that_is_fast_enough() -> None:
    load = Load(8192, 4096)
    planned = plan(llama(), accelerator("H100"), Request("bf16", "bf16", load))
    limit = memory.step_seconds(llama(), planned.replica, 2, planned.card, load, 7)
    assert memory.largest_batch(llama(), planned.replica, 2, planned.card, load, limit) == 7
    assert memory.largest_batch(llama(), planned.replica, 2, planned.card, load, limit * 0.999) == 6
    assert memory.largest_batch(llama(), planned.replica, 2, planned.card, load, 1e-9) == 0


def test_requests_per_second_become_replicas() -> None:
    assert memory.replicas_for_rate(10, 256, 2560) == 1
    assert memory.replicas_for_rate(10.1, 256, 2560) == 2
    assert memory.replicas_for_users(53, 52) == 2


def test_a_mixture_reads_the_experts_its_batch_meets() -> None:
    """One token: 2 of 8 experts, the active parameters; very many tokens: all."""
    mixtral = from_config(MIXTRAL_8X7B, "mixtral")
    weights = 2 * mixtral.parameters
    assert memory.read_bytes(mixtral, weights, 1) == pytest.approx(2 * (mixtral.active + mixtral.others))
    assert memory.read_bytes(mixtral, weights, 1000) == pytest.approx(weights)
    assert memory.read_bytes(llama(), 16, 1) == 16


def test_windows_keep_only_their_pages() -> None:
    """Mistral 7B v0.1: 4,096 tokens in every layer are 256 pages and the one that is being left."""
    mistral = llama(sliding_window=4096)
    assert memory.kv_bytes_per_user(mistral, 2, 32768, 16) == 257 * 16 * 131072
    assert memory.kv_bytes_per_user(mistral, 2, 1024, 16) == 1024 * 131072
    assert any(
        "windows" in line
        for line in warnings(plan(mistral, accelerator("H100"), Request("bf16", "bf16", Load(8192, 1))))
    )
    half = llama(sliding_window=1024, layer_types=["sliding_attention", "full_attention"] * 16)
    assert half.windows == (1024, None) * 16
    assert llama(sliding_window=4096, use_sliding_window=False).windows == (None,) * 32
    assert llama(sliding_window=4096, use_sliding_window=True, max_window_layers=30).windows[29:] == (None, 4096, 4096)


def test_a_compressed_cache_is_counted_by_its_rank() -> None:
    """DeepSeek-V3: 61 layers x (512 + 64) elements x 2 bytes = 70,272 bytes."""
    deepseek = llama(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64)
    assert memory.kv_bytes_per_token(deepseek, 2) == 70_272


def test_more_accelerators_than_kv_heads_hold_heads_twice() -> None:
    """70 B on cards of 24 GB: the fewest that divide 64 heads; 16 for 8 KV heads hold each twice."""
    big = from_sizes(80, 64, 8, 128, 8192, 128256, 70_553_706_496)
    card = Accelerator("card", 12 * GB, 600.0 * GB)
    planned = plan(big, card, Request("bf16", "bf16", Load(4096, 2048)))
    assert planned.replica.accelerators == 16
    assert planned.replica.page_bytes == 2 * 16 * 2 * 80 * 8 * 128 * 2
    assert any("each is held 2 times" in line for line in warnings(planned))


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(CommandError, match="does not fit 32 x tiny"):
        plan(llama(), Accelerator("tiny", 10**8, None), Request("bf16", "bf16", Load(8192, 1)))


def test_confused_heads_are_refused_or_doubted() -> None:
    with pytest.raises(CommandError, match="exchanged"):
        from_sizes(32, 8, 32, 128, 4096, 128256, 8 * 10**9)
    with pytest.raises(CommandError, match="cannot be shared out"):
        from_sizes(32, 32, 7, 128, 4096, 128256, 8 * 10**9)
    doubted = from_sizes(32, 32, 32, 128, 4096, 128256, 8 * 10**9)
    assert "4 times smaller" in doubted.warnings[0]
    assert from_sizes(32, 32, 8, 128, 4096, 128256, 8 * 10**9).warnings == ()
    silent = {key: value for key, value in LLAMA_3_8B.items() if key != "num_key_value_heads"}
    assert "num_key_value_heads" in from_config(silent, "llama").warnings[0]


SIZES = ("--layers", "32", "--heads", "32", "--hidden", "4096", "--params", "8.03B")


def test_the_command_prints_what_it_worked_out() -> None:
    done = CliRunner().invoke(app, ["plan", *SIZES, "--kv-heads", "8", "--accelerator", "h100", "-o", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["kvBytesPerToken"] == 131072
    table = CliRunner().invoke(app, ["plan", *SIZES, "--kv-heads", "8"])
    assert "131072 bytes" in table.stdout
    assert "4 times too much" in table.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (SIZES, "--kv-heads is missing"),
        ((*SIZES, "--kv-heads", "8", "--accelerator", "h1000"), "near: H100"),
        ((*SIZES, "--kv-heads", "8", "--memory", "lots"), "--memory"),
        ((*SIZES, "--kv-heads", "8", "--tpot", "soon"), "--tpot"),
        ((*SIZES, "--kv-heads", "8", "--memory", "80Gi", "--bandwidth", "9", "--input-tokens", "9"), "give --tflops"),
        ((*SIZES, "--kv-heads", "8", "--shared-tokens", "900", "--mean-length", "800"), "--mean-length"),
        ((*SIZES, "--kv-heads", "8", "--accelerators", "1", "--memory", "16Gi", "--spec"), "nothing fits"),
        (
            (*SIZES, "--kv-heads", "8", "--requests-per-second", "1e308", "--output-tokens", "1e9"),
            "--requests-per-second",
        ),
        ((*SIZES, "--kv-heads", "8", "--bandwidth", "1e308"), "--bandwidth"),
        (("--layers", "999999999999", *SIZES[2:], "--kv-heads", "8"), "layers must be at most"),
        (("/nowhere",), "/nowhere does not exist"),
        ((), "no model is named"),
        (("s3://bucket/model",), "allowed"),
    ],
)
def test_mistakes_are_named_without_a_traceback(arguments: tuple[str, ...], message: str) -> None:
    done = CliRunner().invoke(app, ["plan", *arguments])
    assert done.exit_code == 1
    assert message in done.stderr
    assert "Traceback" not in done.output


def printed(*arguments: str) -> dict[str, Any]:
    """`pagefleet plan --spec` of Llama 3 8B, as the operator reads it."""
    done = CliRunner().invoke(app, ["plan", *SIZES, "--kv-heads", "8", *arguments, "--spec"])
    assert done.exit_code == 0, done.output
    patch = yaml.safe_load(done.stdout)
    parsed = parse({"model": {"source": "file:///m"}, **patch["spec"]})
    assert isinstance(parsed, Spec), parsed
    assert structure.known(patch["spec"], SPEC) == patch["spec"], "the API server would drop a field"
    return dict(patch["spec"]["capacityPlan"])


def test_a_plan_for_a_rate_becomes_a_block_of_the_spec() -> None:
    """Two replicas generate 20 x 250 tokens per second, so each half of that."""
    at = ("--accelerator", "h100", "--context-length", "8192", "--mean-length", "1000", "--efficiency", "0.5")
    block = printed(*at, "--requests-per-second", "20", "--output-tokens", "250", "--tpot", "30ms")
    each = block["perReplica"]
    assert block["requestsPerSecond"] * block["perRequest"]["outputTokens"] / block["replicas"] == pytest.approx(
        each["outputTokensPerSecond"], rel=0.01
    )
    assert each["concurrency"] / each["outputTokensPerSecond"] < 0.03
    assert each["outputTokensPerSecond"] <= each["peakOutputTokensPerSecond"]
    assert (block["perRequest"]["kvTokens"], each["kvCacheTokens"]) == (1000, 26_674 * 16)
    json_block = CliRunner().invoke(app, ["plan", *SIZES, "--kv-heads", "8", *at, "--spec", "-o", "json"])
    assert json.loads(json_block.stdout)["spec"]["capacityPlan"]["perRequest"] == {"kvTokens": 1000}


def test_a_plan_for_users_has_their_share_of_a_replica_and_what_they_share() -> None:
    block = printed("--accelerator", "h100", "--context-length", "8192", "--users", "100", "--shared-tokens", "4000")
    assert block["replicas"] == 1
    assert block["perReplica"]["concurrency"] == 100
    assert block["perRequest"] == {"kvTokens": 4000 + 2096 - 4000, "sharedTokens": 4000}


@pytest.mark.parametrize("users", [None, "1", "5000"])
@pytest.mark.parametrize("rate", [None, "0", "0.5", "300"])
@pytest.mark.parametrize("card", ["l4", "b200", "80Gi"])
def test_every_block_is_one_that_the_schema_takes(users: str | None, rate: str | None, card: str) -> None:
    arguments = ["--memory", card] if card.endswith("Gi") else ["--accelerator", card]
    arguments += ["--users", users] if users else []
    arguments += ["--requests-per-second", rate] if rate else []
    block = printed(*arguments)
    assert ("concurrency" in block["perReplica"]) is not card.endswith("Gi"), (
        "without a bandwidth nothing is known of speed"
    )


def test_the_longest_time_per_token_holds_at_the_efficiency_that_is_expected() -> None:
    """Steps at 30 % of the data sheet's bandwidth take more than three times as long: the batch has to be smaller."""
    request = Request("bf16", "bf16", Load(2048, 1024), accelerators=1, rate=100.0, tpot=0.02, efficiency=0.3)
    made = plan(llama(), accelerator("h100"), request)
    assert made.tokens_all is not None and made.batch
    assert made.batch / made.tokens_all <= 0.02
    assert made.tokens_one is not None and made.tokens_one >= made.tokens_all / made.batch


@pytest.mark.parametrize("option", [("--requests-per-second", "1000"), ("--tpot", "50ms")])
def test_what_needs_the_bandwidth_is_never_left_out_in_silence(option: tuple[str, str]) -> None:
    """Without it nobody knows how many replicas the rate needs: the number for the users alone is no plan for both."""
    arguments = ["plan", *SIZES, "--kv-heads", "8", "--memory", "80Gi", "--users", "10", *option]
    made = json.loads(CliRunner().invoke(app, [*arguments, "-o", "json"]).output)
    assert made["replicas"] is None
    assert (
        f"{option[0]} cannot be planned: the accelerator's bandwidth is not known, give --bandwidth" in made["warnings"]
    )
    assert (
        "replicas" not in yaml.safe_load(CliRunner().invoke(app, [*arguments, "--spec"]).output)["spec"]["capacityPlan"]
    )


@pytest.mark.parametrize(
    "option",
    [
        (f"--{name}", "inf")
        for name in ("requests-per-second", "params", "output-tokens", "input-tokens", "bandwidth", "tflops")
    ],
)
def test_a_number_without_end_is_refused(option: tuple[str, str]) -> None:
    done = CliRunner().invoke(app, ["plan", *SIZES, "--kv-heads", "8", "--spec", "--users", "1", *option])
    assert (done.exit_code, type(done.exception)) == (1, SystemExit)
    assert option[0] in done.stderr


def test_nobody_holds_more_on_average_than_the_longest_context() -> None:
    arguments = [
        "plan",
        *SIZES,
        "--kv-heads",
        "8",
        "--context-length",
        "4096",
        "--mean-length",
        "10000",
        "--users",
        "9",
    ]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert "--mean-length must not be above --context-length (4096), but is 10000" in done.stderr
