"""Protects the picker's decision: live revisions, least loaded pod, retries elsewhere, log lines."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from pagefleet_gateway.cluster.objects import service_from
from pagefleet_gateway.cluster.readings import Readings
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import KnownPods, Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.access_log import LogLine, complete, parse
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.prompts.request_cost import request_cost
from pagefleet_gateway.picking.routing import Refusal

PATH = "/team/chat/v1/completions"


def pod(uid: str, revision: str, ready: bool = True) -> Pod:
    return Pod(uid, f"pod-{uid}", "team", "chat", revision, f"10.0.0.{uid}:8000", ready)


class World:
    def __init__(self, *pods: Pod, **service: object) -> None:
        self.state, self.ledger = State(), Ledger()
        self.picker = Picker(self.state, self.ledger, random.Random(7))
        self.state.replace_pods(pods)
        self.state.confirm(pods)
        options: dict[str, object] = {"weights": (("a", 90), ("b", 10)), **service}
        self.state.put_service(Service("team", "chat", "smol", **options))  # type: ignore[arg-type]
        self.count = 0

    def ask(self, now: float = 0.0, body: object = None, **headers: str) -> Pick | Refusal:
        self.count += 1
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        data = b"" if body is None else json.dumps(body).encode()
        return self.picker.decide(Request(f"r{self.count}", "POST", PATH, names, data), now)

    def pick(self, now: float = 0.0, body: object = None, **headers: str) -> Pick:
        answer = self.ask(now, body, **headers)
        if not isinstance(answer, Pick):
            raise TypeError(f"refused: {answer}")
        return answer

    def end(self, request: int, **fields: object) -> object:
        line = {
            "id": f"r{request}",
            "start": "100.5",
            "code": 200,
            "flags": "-",
            "duration_us": 1000,
            "attempts": 1,
        }
        parsed = parse(json.dumps(line | fields).encode())
        if not isinstance(parsed, LogLine):
            raise TypeError("not a line")
        return complete(parsed, self.ledger, 0.0)


def test_the_least_loaded_pod_is_first_and_the_rest_are_the_retries() -> None:
    world = World(pod("1", "a"), pod("2", "a"), pod("3", "a"), weights=(("a", 100),))
    first = [world.pick().choices for _ in range(30)]
    assert {len({choice.uid for choice in choices}) for choices in first} == {3}
    assert Counter(choices[0].uid for choices in first) == {"1": 10, "2": 10, "3": 10}
    world.end(1)
    assert world.pick().choices[0] == first[0][0]


def test_a_pod_whose_engine_queues_is_met_later() -> None:
    text = b'# TYPE pagefleet_num_requests_waiting gauge\npagefleet_num_requests_waiting{model_name="m"} 3.0\n'
    one, two = pod("1", "a"), pod("2", "a")
    world = World(one, two, weights=(("a", 100),))
    readings = Readings(world.ledger.in_flight)
    world.picker = Picker(world.state, world.ledger, random.Random(7), readings)
    readings.put(one, text, now=0.0)
    readings.put(two, b"something else 1\n", now=0.0)
    assert [world.pick(now=1.0).choices[0] for _ in range(3)] == [two, two, two]
    assert readings.of(one, 1.0).waiting == 3.0 and readings.of(two, 1.0).waiting == 0.0
    assert readings.of(one, 6.0).waiting == 0.0  # too old to believe
    assert world.pick(now=6.0).choices[0] == one


def test_only_requests_of_others_count_beside_our_own() -> None:
    one = pod("1", "a")
    world = World(one, weights=(("a", 100),))
    readings = Readings(world.ledger.in_flight)
    world.pick()
    readings.put(one, b"pagefleet_num_requests_running 3\n", now=0.0)
    assert readings.of(one, 0.0).foreign == 2.0


def test_a_prefix_brings_a_request_back_and_an_adapter_to_its_pod() -> None:
    pods = [pod(str(index), "a") for index in range(1, 9)]
    world = World(*pods, weights=(("a", 100),))
    readings = Readings(world.ledger.in_flight)
    world.picker = Picker(world.state, world.ledger, random.Random(7), readings)
    homes = {}
    for group in "abcdefgh":
        homes[group] = world.pick(body={"prompt": group * 4000}).choices[0]
    for done in range(1, world.count + 1):
        world.end(done)
    for group, home in homes.items():
        assert world.pick(body={"prompt": group * 4000 + "and more"}).choices[0] == home
        world.end(world.count)
    metric = b'vllm:num_requests_running 0\nvllm:lora_requests_info{running_lora_adapters="fr"} 1\n'
    readings.put(pods[5], metric, now=0.0)
    assert {world.pick(body={"model": "fr", "prompt": "x"}, now=1.0).choices[0] for _ in range(1)} == {pods[5]}


def test_a_long_request_weighs_more_than_a_short_one() -> None:
    world = World(pod("1", "a"), pod("2", "a"), weights=(("a", 100),))
    long = world.pick(body={"prompt": "x" * 40_000, "max_tokens": 500}).choices[0]
    short = [world.pick(body={"prompt": f"{index}", "max_tokens": 50}).choices[0] for index in range(20)]
    assert long not in short
    assert world.ledger.counts(long).tokens == 10_500
    world.end(1)
    assert world.ledger.counts(long).tokens == 0


def test_retries_stay_in_the_revision_and_leave_it_only_when_it_has_too_few_pods() -> None:
    world = World(pod("1", "a"), pod("2", "b"), weights=(("a", 100), ("b", 0)))
    assert [choice.uid for choice in world.pick().choices] == ["1", "1", "1"]  # b has no weight
    world = World(pod("1", "a"), pod("2", "b"), sticky_header="", canary="b", canary_headers=(("x-c", "1"),))
    assert [choice.uid for choice in world.pick(x_c="1").choices] == ["2", "1", "2"]


def test_a_canary_without_weight_is_met_only_by_header() -> None:
    options = {"weights": (("a", 100), ("b", 0)), "canary": "b", "canary_headers": (("x-c", "1"),)}
    world = World(pod("1", "a"), pod("2", "b"), **options)
    assert world.pick().revision == "a"
    assert world.pick(x_c="1").revision == "b"
    assert world.pick(x_c="2").revision == "a"
    world.state.remove_pod("1")
    assert isinstance(world.ask(), Refusal)
    assert world.pick(x_c="1").revision == "b"


def test_a_revision_without_a_ready_pod_is_left_out() -> None:
    world = World(pod("1", "a", ready=False), pod("2", "b"))
    assert {world.pick().revision for _ in range(50)} == {"b"}


@pytest.mark.parametrize(("weights", "code"), [((), "service_not_ready"), ((("a", 100),), "no_ready_pod")])
def test_nothing_to_serve_is_a_503_that_says_when_to_come_back(weights: object, code: str) -> None:
    answer = World(weights=weights).ask()
    assert isinstance(answer, Refusal)
    assert (answer.status, answer.code) == (503, code) and answer.retry_after
    assert json.loads(answer.body())["error"]["code"] == code


def test_a_pod_that_failed_is_left_alone_for_a_while_unless_there_is_no_other() -> None:
    world = World(pod("1", "a"), pod("2", "a"), weights=(("a", 100),))
    failed = world.pick().choices[0]
    world.end(1, attempts=2, upstream=world.pick().choices[0].address)
    assert {world.pick(now=1.0).choices[0].uid for _ in range(20)} == {"1", "2"} - {failed.uid}
    assert failed.uid in {world.pick(now=6.0).choices[0].uid for _ in range(20)}
    world.state.remove_pod(({"1", "2"} - {failed.uid}).pop())
    assert world.pick(now=1.0).choices[0] == failed


def test_the_mirrored_share_is_drawn_and_never_changes_the_answer() -> None:
    world = World(pod("1", "a"), pod("2", "b"), weights=(("a", 100),), mirror=("b", 25.0))
    picks = [world.pick() for _ in range(2000)]
    assert {choice.revision for pick in picks for choice in pick.choices} == {"a"}
    copied = [pick.mirror for pick in picks if pick.mirror is not None]
    assert abs(len(copied) - 500) < 70 and {copy.uid for copy in copied} == {"2"}
    world.state.remove_pod("2")
    assert world.pick().mirror is None


def test_the_mirrored_revisions_pods_share_the_copies_by_load() -> None:
    mirrored = [pod(str(number), "b") for number in range(2, 6)]
    world = World(pod("1", "a"), *mirrored, weights=(("a", 100),), mirror=("b", 100.0))
    copies = Counter(pick.mirror.uid for _ in range(200) if (pick := world.pick()).mirror is not None)
    assert copies == {"2": 50, "3": 50, "4": 50, "5": 50}  # one scrape period, in which no reading changes
    assert sum(world.ledger.in_flight(one) for one in mirrored) == 200
    for number in range(1, 201):
        world.end(number)
    assert not any(world.ledger.in_flight(one) or world.ledger.counts(one).tokens for one in mirrored)


def test_a_copys_prompt_is_cached_where_it_went_and_a_pod_at_its_limit_gets_none() -> None:
    mirrored = [pod("2", "b"), pod("3", "b")]
    world = World(pod("1", "a"), *mirrored, weights=(("a", 100),), mirror=("b", 100.0))
    prompts = [{"model": "m", "prompt": letter * 4096} for letter in "xy"]
    places = {}
    for prompt in prompts:
        pick = world.pick(body=prompt)
        assert pick.mirror is not None
        places[prompt["prompt"]] = pick.mirror.uid
    for number in (1, 2):
        world.end(number)
    for number, prompt in enumerate(prompts * 3, start=3):
        pick = world.pick(body=prompt)
        assert pick.mirror is not None and pick.mirror.uid == places[prompt["prompt"]]
        world.end(number)
    more = World(pod("1", "a"), mirrored[0], weights=(("a", 100),), mirror=("b", 100.0), pod_limit=3)
    for _ in range(3):
        assert more.pick().mirror is not None
    more.state.put_pod(pod("9", "a"))
    more.state.confirm(more.state.pods)
    assert more.pick().mirror is None  # the only mirrored pod has three


def test_a_container_that_started_again_has_an_empty_cache() -> None:
    one, two = (replace(pod(uid, "a"), container=f"first-{uid}") for uid in "12")
    world = World(one, two, weights=(("a", 100),))
    body = {"model": "m", "prompt": "x" * 8192}
    first = world.pick(body=body).choices[0]
    world.end(1)
    assert world.pick(body=body).choices[0].uid == first.uid
    world.end(2)
    blocks = request_cost(json.dumps(body).encode()).blocks
    assert world.picker.prefixes.matched(first.cache, blocks) == 32
    world.state.put_pod(replace(first, container="second"))  # the same pod, address and readiness
    (known,) = [one for one in world.state.snapshot.pods["team", "chat"]["a"] if one.uid == first.uid]
    assert known.container == "second"  # and Envoy need not confirm it once more
    assert world.picker.prefixes.matched(known.cache, blocks) == 0
    finish(world.picker.sweep(0.0))
    assert world.picker.prefixes.matched(first.cache, blocks) == 0


def test_a_fallback_is_one_step_and_only_when_it_is_needed() -> None:
    world = World(pod("1", "a"), weights=(("a", 100),), fallback="small", pod_limit=1)
    small = Pod("9", "s", "team", "small", "c", "10.0.0.9:8000")
    world.state.put_pod(small)
    world.state.confirm([pod("1", "a"), small])
    world.state.put_service(Service("team", "small", "s", (("c", 100),), fallback="chat"))
    assert (world.pick().fallback, world.pick().fallback) == ("", "team/small")
    assert world.ledger.by_revision() == {("team", "chat", "a"): 1, ("team", "small", "c"): 1}
    world.state.remove_pod("9")
    refused = world.ask()
    assert isinstance(refused, Refusal) and refused.code == "overloaded"
    world.state.remove_pod("1")
    refused = world.ask()
    assert isinstance(refused, Refusal) and refused.code == "no_ready_pod" and refused.service == ("team", "chat")


def test_tickets_end_once_and_leave_nothing_behind() -> None:
    world = World(pod("1", "a"), weights=(("a", 100),))
    world.pick()
    world.pick()
    assert world.ledger.in_flight(pod("1", "a")) == 2
    assert world.end(1) is not None and world.end(1) is None
    assert world.ledger.by_revision() == {("team", "chat", "a"): 1}
    finish(world.ledger.sweep(KnownPods(), 0.0))
    assert world.ledger.in_flight(pod("1", "a")) == 0
    assert world.end(2) is not None and len(world.ledger) == 0
    world.pick()
    assert [len(lost) for lost in world.ledger.expire(10_000.0)] == [1]
    assert len(world.ledger) == 0 and world.ledger.in_flight(pod("1", "a")) == 0


def test_lines_that_are_none() -> None:
    assert parse(b"[2026] warning") is None and parse(b"{}") is None and parse(b'{"id": "a"') is None


@pytest.mark.parametrize("limit", [0, 1])
def test_a_pod_at_its_limit_is_only_a_retry_s_choice_while_another_has_room(limit: int) -> None:
    world = World(pod("1", "a"), pod("2", "a"), pod("3", "b"), weights=(("a", 100),), pod_limit=limit)
    prompt = {"prompt": "word " * 2000}
    cached = world.pick(body=prompt).choices[0]
    world.end(1)
    world.ledger.others.update("gateway-2", {cached.uid: [1, 0, 0, 0, 0, 0]})
    choices = world.pick(body=prompt).choices
    assert (choices[0] == cached) is not bool(limit), "without a limit the pod that has the prompt gets it"
    assert {one.uid for one in choices} == {"1", "2"}, "a retry stays with the revision"


def test_the_limit_of_a_pod_counts_the_requests_of_other_gateways() -> None:
    world = World(pod("1", "a"), weights=(("a", 100),), pod_limit=3)
    world.ledger.others.update("gateway-2", {"1": [2, 0, 0, 0, 0, 0]})
    assert isinstance(world.ask(), Pick)
    refused = world.ask()
    assert isinstance(refused, Refusal) and refused.code == "overloaded"
    world.ledger.others.forget("gateway-2")
    assert isinstance(world.ask(), Pick)


def test_classes_that_the_budget_gives_up_are_refused_and_no_others() -> None:
    classes = {"priorities": ((("x-tier", "live"),), (("x-tier", "batch"),)), "priority_names": ("live", "batch")}
    world = World(pod("1", "a"), weights=(("a", 100),), shed=("batch",), **classes)
    refused = world.ask(x_tier="batch")
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.retry_after) == (429, "budget_spent", 3600)
    assert "refuses requests of priority batch" in refused.message
    assert "spec.cost.budget" in refused.message
    world.pick(x_tier="live")
    world.pick()
    nobody = World(pod("1", "a"), weights=(("a", 100),), **classes)
    nobody.pick(x_tier="batch")


def test_a_promise_at_risk_refuses_its_classes_and_caps_every_answer() -> None:
    classes = {"priorities": ((("x-tier", "live"),), (("x-tier", "batch"),)), "priority_names": ("live", "batch")}
    world = World(pod("1", "a"), weights=(("a", 100),), shed_for_slo=("batch",), slo_output_tokens=64, **classes)
    refused = world.ask(x_tier="batch")
    assert isinstance(refused, Refusal)
    assert (refused.status, refused.code, refused.retry_after) == (429, "promise_at_risk", 60)
    long = {"model": "smol", "prompt": "a", "max_tokens": 500}
    assert world.pick(body=long, x_tier="live").peak_output_tokens == 64
    assert world.pick(body=long | {"max_tokens": 20}).peak_output_tokens == 0, "it asks for fewer"
    world = World(pod("1", "a"), weights=(("a", 100),), slo_output_tokens=64, peak_output_tokens=16, **classes)
    assert world.pick(body=long).peak_output_tokens == 64, "nobody waits, so that the peak's cap does not hold"


def test_the_classes_are_read_from_the_status() -> None:
    document = {
        "metadata": {"namespace": "team", "name": "chat"},
        "spec": {"traffic": {"priorities": [{"name": "batch", "header": {"X-Tier": "batch"}}]}},
        "status": {
            "spending": {"shed": ["batch", 7], "spent": 91.0},
            "slo": {"shed": ["batch"], "maxOutputTokens": 256},
        },
    }
    read = service_from(document)
    assert (read.shed, read.shed_for_slo, read.slo_output_tokens) == (("batch",), ("batch",), 256)
    assert service_from({**document, "status": {"spending": {"shed": "batch"}}}).shed == ()


def test_a_prefix_that_its_pods_cache_has_no_room_for_attracts_nobody() -> None:
    """An engine's reading states the size of its cache, which a container that starts again has too."""
    state, readings = State(), Readings()
    picker = Picker(state, Ledger(), random.Random(7), readings)
    one = pod("1", "a")
    state.put_service(Service("team", "chat", "smol", (("a", 100),)))
    state.replace_pods([one])
    state.confirm([one])
    blocks = request_cost(json.dumps({"prompt": "x" * 4096}).encode()).blocks
    picker.prefixes.record(one.cache, blocks)
    assert picker.prefixes.matched(one.cache, blocks) == len(blocks) == 16
    page = b"pagefleet_num_requests_running 0\npagefleet_kv_pages 32\npagefleet_kv_page_tokens 16\n"
    readings.put(one, page, 0.0)
    assert picker.prefixes.matched(one.cache, blocks) == 8
    again = replace(one, container="2")
    readings.put(again, page, 1.0)
    picker.prefixes.record(again.cache, blocks)
    assert picker.prefixes.matched(again.cache, blocks) == 8
    readings.put(again, b"pagefleet_num_requests_running 0\n", 2.0)
    finish(picker.sweep(2.0))
    picker.prefixes.record(one.cache, blocks)
    assert picker.prefixes.matched(one.cache, blocks) == 8, "an engine that does not state it for a moment has it still"
