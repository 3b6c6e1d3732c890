"""Protects how the gateway counts requests of two legs, and what its two fronts say of a prefill pod: its work ends with the first
token, prompts spread over prefill pods, and another gateway's client cannot name one."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace

import pytest

from pagefleet_contract.disaggregation import FAILED, REMOTE, TIMEOUT, UNREACHED
from pagefleet_contract.headers import PREFILL_HEADER
from pagefleet_contract.names import ENGINE_ANNOTATION
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.objects import pod_from
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.envoy.endpoints import Endpoints
from pagefleet_gateway.fronts.authz import http_response
from pagefleet_gateway.fronts.ext_proc_messages import pick_response
from pagefleet_gateway.measuring.access_log import LogLine, complete, parse, rendered
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.outliers import ERRORS_TO_EJECT
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker

DECODE = Pod("d", "pod-d", "team", "chat", "a", "10.0.0.1:8000")
ONE, TWO = (
    Pod(f"p{n}", f"pod-p{n}", "team", "chat", "a", f"10.0.1.{n}:8000", engine=Engine(prefill_from=64), prefills=True)
    for n in (1, 2)
)
TEXT = "word " * 400


class World:
    def __init__(self, *pods: Pod) -> None:
        self.state, self.ledger = State(), Ledger()
        self.picker = Picker(self.state, self.ledger, random.Random(7))
        self.state.replace_pods(pods)
        self.state.confirm(pods)
        self.state.put_service(Service("team", "chat", "smol", (("a", 100),)))
        self.count = 0

    def pick(self, text: str = "", now: float = 0.0, stream: bool = True) -> Pick:
        self.count += 1
        body = {"model": "smol", "prompt": f"{self.count} {text or TEXT}", "stream": stream}
        path = "/team/chat/v1/completions"
        answer = self.picker.decide(Request(f"r{self.count}", "POST", path, {}, json.dumps(body).encode()), now)
        assert isinstance(answer, Pick)
        return answer

    def end(self, outcome: str, now: float = 0.0) -> LogLine:
        fields = {
            "id": f"r{self.count}",
            "code": 200,
            "flags": "-",
            "attempts": 1,
            "upstream": DECODE.address,
            "prefilled": outcome,
        }
        line = parse(json.dumps(fields).encode())
        assert isinstance(line, LogLine)
        complete(line, self.ledger, now)
        return line


def test_prompts_spread_over_prefill_pods_and_none_is_computed_twice() -> None:
    world = World(DECODE, ONE, TWO)
    picked = [world.pick().prefill for _ in range(20)]
    counts = Counter(pods[0].uid for pods in picked)
    assert set(counts) == {"p1", "p2"} and min(counts.values()) >= 9
    assert world.ledger.in_flight(DECODE) == 20
    decode, prefill = world.ledger.own_counts(DECODE), world.ledger.own_counts(ONE)
    assert decode.waiting_tokens == 0 and prefill.waiting == counts["p1"] and prefill.waiting_tokens > 9 * 300


def test_a_prefill_pods_work_ends_with_the_first_token() -> None:
    world = World(DECODE, ONE)
    world.pick()
    assert world.ledger.own_counts(ONE).tokens > 300
    world.ledger.record_first_token("r1", 0.5)
    assert world.ledger.in_flight(ONE) == 0 and world.ledger.in_flight(DECODE) == 1
    world.end(REMOTE)
    assert world.ledger.in_flight(DECODE) == 0


def test_a_short_prompt_asks_no_prefill_pod() -> None:
    world = World(DECODE, ONE)
    assert world.pick("hello").prefill == ()
    assert world.ledger.own_counts(DECODE).waiting == 1


@pytest.mark.parametrize(("outcome", "times"), [(UNREACHED, 1), (TIMEOUT, 1), (FAILED, ERRORS_TO_EJECT)])
def test_a_prefill_pod_that_fails_is_ejected_and_tried_again_later(outcome: str, times: int) -> None:
    world = World(DECODE, ONE)
    for _ in range(times):
        assert world.pick().prefill == (ONE,)
        world.end(outcome)
    assert world.pick().prefill == ()
    assert world.pick(now=6.0).prefill == (ONE,)  # on trial
    world.end(REMOTE, now=6.0)
    assert world.pick(now=6.0).prefill == (ONE,)


def test_where_decode_pods_compute_no_prompt_every_request_has_two_prefill_pods() -> None:
    """The second one is for the case that the first fails. One that has failed is better than none."""
    first, second = (replace(pod, engine=Engine(prefill_from=0)) for pod in (ONE, TWO))
    world = World(DECODE, first, second)
    assert Counter(world.pick("hello").prefill) == Counter((first, second))
    alone = World(DECODE, first)
    for _ in range(3):
        assert alone.pick("hello").prefill == (first,)
        alone.end(UNREACHED)
    assert World(DECODE).pick("hello").prefill == ()


def test_both_fronts_name_it_and_a_foreign_client_cannot() -> None:
    pick = Pick("a", (DECODE,), None, 0, prefill=(ONE,))
    value = f"a@{ONE.address}"
    assert f"{PREFILL_HEADER}: {value}\r\n" in http_response(pick).decode()
    set_headers = {
        one.header.key: one.header.raw_value.decode() for one in pick_response(pick)[0].header_mutation.set_headers
    }
    assert set_headers[PREFILL_HEADER] == value
    alone = Pick("a", (DECODE,), None, 0)
    assert PREFILL_HEADER not in http_response(alone).decode()
    assert PREFILL_HEADER in pick_response(alone)[0].header_mutation.remove_headers


def test_envoy_does_not_know_prefill_pods(tmp_path: object) -> None:
    world = World(DECODE, ONE)
    _, pods = Endpoints(world.state, tmp_path / "e")._next()  # type: ignore[operator]
    assert pods == (DECODE,)


def test_the_gateways_log_names_the_outcome_of_a_prefill_leg_only_where_there_was_one() -> None:
    world = World(DECODE, ONE)
    world.pick()
    assert json.loads(rendered(world.end(REMOTE), None))["prefilled"] == REMOTE
    world.pick()
    assert "prefilled" not in json.loads(rendered(world.end(""), None))


@pytest.mark.parametrize(
    "text", ["", "{", '{"port": 8000}', '{"port": 8000, "prefillFrom": -4}', '{"port": 8000, "prefillFrom": "x"}']
)
def test_a_prefill_pod_whose_annotation_cannot_be_read_stays_one(text: str) -> None:
    """A poisoned annotation must not make it a pod that requests are sent to."""
    labels = {"pagefleet.io/prefill-of": "chat", "pagefleet.io/service": "chat", "pagefleet.io/revision": "a"}
    metadata = {"uid": "u", "namespace": "team", "labels": labels, "annotations": {ENGINE_ANNOTATION: text}}
    pod = pod_from({"metadata": metadata, "status": {"podIP": "10.0.0.9", "phase": "Running"}})
    assert pod is not None and pod.prefills and pod.engine.prefill_from == 512
