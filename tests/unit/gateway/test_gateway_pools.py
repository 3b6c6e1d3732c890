"""Protects InferencePools at the gateway: which pools are ours, which pods they hold as pods and pools come and go in any
order, and which service a request to one means."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.aio import client

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker
from pagefleet_gateway.picking.routing import Refusal
from pagefleet_gateway.settings import SettingError, settings_from
from pagefleet_gateway.watching.kube import _feeds, _with_pools
from pagefleet_gateway.watching.pools import Pool, Pools, hostnames_of, pool_from

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)


def pool(name: str = "qwen", **changes: Any) -> dict[str, Any]:
    spec = {
        "selector": {"matchLabels": {"app": name}},
        "targetPorts": [{"number": 9000}],
        "endpointPickerRef": {"group": "", "kind": "Service", "name": "picker", "port": {"number": 9003}},
    }
    return {"metadata": {"namespace": "team", "name": name}, "spec": {**spec, **changes}}


def pod(uid: str, app: str = "qwen", *, ready: bool = True, **labels: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "metadata": {"namespace": "team", "name": uid, "uid": uid, "labels": {"app": app, **labels}},
        "status": {"podIP": f"10.0.0.{uid}", "conditions": conditions},
    }


def test_a_pool_that_names_us_is_read() -> None:
    assert pool_from(pool(), "picker") == Pool("team", "qwen", (("app", "qwen"),), (9000,))


@pytest.mark.parametrize(
    "raw",
    [
        pool(endpointPickerRef={"name": "another"}),
        pool(endpointPickerRef={"name": "picker", "kind": "Gateway"}),
        pool(selector={"matchLabels": {}}),
        pool(selector={"matchLabels": {"pagefleet.io/service": "chat"}}),
        pool(targetPorts=[]),
        pool(targetPorts=[{"number": "http"}]),
    ],
)
def test_a_pool_that_is_not_ours_to_hold_is_left_alone(raw: dict[str, Any]) -> None:
    assert pool_from(raw, "picker") is None


@settings(max_examples=200)
@given(JSON, JSON, JSON)
def test_any_json_is_a_pool_or_none_and_changes_nothing_else(spec: Any, metadata: Any, status: Any) -> None:
    state = State()
    pools = Pools(state, "picker")
    raw = {"spec": spec, "metadata": metadata, "status": status}
    for feed in (pools.put, pools.put_pod, pools.remove_pod, pools.remove):
        feed(raw)
    pools.replace([raw])
    pools.replace_pods([raw])
    hostnames_of(raw)
    assert not state.snapshot.services


def held(state: State) -> set[tuple[str, str, bool]]:
    return {(pod.service, pod.address, pod.ready) for pod in state.pods}


def test_pods_and_pools_may_come_in_any_order_and_go() -> None:
    state = State()
    pools = Pools(state, "picker")
    pools.put_pod(pod("1"))
    assert held(state) == set()
    pools.put(pool())
    pools.put_pod(pod("2", ready=False))
    pools.put_pod(pod("3", "else"))
    assert held(state) == {("~qwen", "10.0.0.1:9000", True), ("~qwen", "10.0.0.2:9000", False)}
    pools.put(pool(targetPorts=[{"number": 9000}, {"number": 9001}]))
    pools.remove_pod(pod("2"))
    assert held(state) == {("~qwen", "10.0.0.1:9000", True), ("~qwen", "10.0.0.1:9001", True)}
    pools.put_pod(pod("1", "else"))
    assert held(state) == set()
    pools.put_pod(pod("1"))
    pools.put(pool(endpointPickerRef={"name": "another"}))
    assert (held(state), dict(state.snapshot.services)) == (set(), {})
    pools.replace([pool()])
    assert list(state.snapshot.services) == [("team", "~qwen")]
    pools.replace([])
    assert (held(state), dict(state.snapshot.services)) == (set(), {})


def test_an_inferenceservices_pods_are_nobody_elses() -> None:
    state = State()
    pools = Pools(state, "picker")
    pools.put(pool())
    pools.put_pod(pod("1", **{"pagefleet.io/service": "chat"}))
    assert held(state) == set()


def asked(path: str, model: str = "", host: str = "", method: str = "POST") -> Request:
    body = json.dumps({"model": model}).encode() if model else b""
    return Request("1", method, path, {":authority": host}, body)


def world(*pools_of: str) -> tuple[State, Pools]:
    state = State()
    state.put_service(Service("team", "chat", "smol", (("a", 100),)))
    pools = Pools(state, "picker")
    pools.put_hosts(("team", "chat"), ("chat.example.org",))
    pools.put_hosts(("team", "any"), ("*.example.org",))
    for name in pools_of:
        pools.put(pool(name))
    return state, pools


@pytest.mark.parametrize(
    ("request_", "path"),
    [
        (asked("/v1/completions", host="chat.example.org"), "/team/chat/v1/completions"),
        (asked("/v1/completions", host="Chat.Example.org:443"), "/team/chat/v1/completions"),
        (asked("/v1/models", host="other.example.org", method="GET"), "/team/any/v1/models"),
        (asked("/v1/completions", "smol", "example.org"), "/v1/completions"),
        (asked("/v1/completions", "qwen2"), "/team/~qwen/v1/completions"),
        (asked("/v1/models", method="GET"), "/team/~qwen/v1/models"),
        (asked("/team/chat/v1/completions", "qwen2", "other.example.org"), "/team/chat/v1/completions"),
        (asked("/elsewhere", "qwen2"), "/team/~qwen/v1/elsewhere"),
        (asked("/elsewhere?to=/v1/x", "smol"), "/v1/elsewhere?to=/v1/x"),
        (asked("/api/v1/llm/v1/chat/completions?x=1", "qwen2"), "/team/~qwen/v1/chat/completions?x=1"),
        (asked("/team/gone/v1/completions", "qwen2"), "/team/~qwen/v1/completions"),
        (asked("/team/gone/v1/completions", "smol"), "/team/gone/v1/completions"),
        (asked("/llm/v1/completions", "qwen2", "chat.example.org"), "/team/chat/v1/completions"),
    ],
)
def test_the_service_is_found_by_host_path_model_or_because_it_is_the_only_pool(request_: Request, path: str) -> None:
    _, pools = world("qwen")
    assert pools.with_service_path(request_).path == path


def routed(name: str, *hostnames: str) -> dict[str, Any]:
    traffic = {"provider": "GatewayAPI", "gatewayAPI": {"hostnames": list(hostnames)}}
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"traffic": traffic}}


async def test_a_host_name_is_no_more_that_of_a_service_that_a_new_list_lacks() -> None:
    state, request = State(), asked("/v1/completions", host="chat.example.org")
    pools = Pools(state, "picker")
    async with client.ApiClient() as api:
        services, *_ = _with_pools(api, state, "", pools, _feeds(api, state, ""))
    services.replace([routed("old", "chat.example.org"), routed("moved", "chat.example.org")])
    assert pools.with_service_path(request).path == "/team/old/v1/completions"
    services.replace([routed("moved", "chat.example.org")])
    assert pools.with_service_path(request).path == "/team/moved/v1/completions"
    services.replace([])
    pools.put(pool())
    assert pools.with_service_path(request).path == "/team/~qwen/v1/completions"


def test_any_path_is_a_pools_only_where_a_pool_names_this_picker() -> None:
    _, pools = world()
    assert pools.with_service_path(asked("/elsewhere", "smol")).path == "/elsewhere"
    pools.put(pool("chat", selector={"matchLabels": {"pagefleet.io/service": "chat"}}))
    assert pools.with_service_path(asked("/elsewhere", "smol")).path == "/v1/elsewhere"
    pools.remove(pool("chat"))
    assert pools.with_service_path(asked("/elsewhere", "smol")).path == "/elsewhere"


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/llm/load_lora_adapter", "/llm%2Funload_lora_adapter/?x"])
def test_no_path_leads_to_what_loads_adapters_at_run_time(path: str) -> None:
    state, pools = world("qwen")
    pools.put_pod(pod("1"))
    state.confirm(state.pods)
    answer = Picker(state, Ledger(), random.Random(1)).decide(pools.with_service_path(asked(path, "qwen2")), 0.0)
    assert isinstance(answer, Refusal) and (answer.status, answer.code) == (403, "path_not_allowed")


def test_two_other_pools_are_not_guessed_between() -> None:
    _, pools = world("qwen", "llama")
    assert pools.with_service_path(asked("/v1/completions", "qwen2")).path == "/v1/completions"


def test_a_request_to_a_pool_meets_one_of_its_ready_pods() -> None:
    state, pools = world("qwen")
    for raw in (pod("1"), pod("2", ready=False)):
        pools.put_pod(raw)
    state.put_pod(Pod("9", "p", "team", "chat", "a", "10.0.0.9:8000"))
    state.confirm(state.pods)
    picker = Picker(state, Ledger(), random.Random(1))
    pick = picker.decide(pools.with_service_path(asked("/v1/completions", "qwen2")), 0.0)
    assert isinstance(pick, Pick)
    assert {chosen.address for chosen in pick.choices} == {"10.0.0.1:9000"}
    own = picker.decide(pools.with_service_path(asked("/v1/completions", "smol")), 0.0)
    assert isinstance(own, Pick)
    assert {chosen.address for chosen in own.choices} == {"10.0.0.9:8000"}


def test_pools_need_a_namespace_and_a_port() -> None:
    named = {"PAGEFLEET_GATEWAY_POOLS": "picker"}
    for missing in (named, {**named, "PAGEFLEET_GATEWAY_NAMESPACE": "team"}):
        with pytest.raises(SettingError, match="PAGEFLEET_GATEWAY_POOLS"):
            settings_from(missing)
    given_all = {**named, "PAGEFLEET_GATEWAY_NAMESPACE": "team", "PAGEFLEET_GATEWAY_PICKER_PORT": "9003"}
    assert (settings_from(given_all).pools, settings_from(given_all).namespace) == ("picker", "team")
