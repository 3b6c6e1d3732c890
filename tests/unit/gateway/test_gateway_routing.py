"""Protects how a request finds its service, and what the gateway reads from the cluster's objects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pagefleet_gateway.cluster.engines import own_engine
from pagefleet_gateway.cluster.objects import duration, pod_from, service_from
from pagefleet_gateway.cluster.service import QueueBounds, RateLimit, Service
from pagefleet_gateway.cluster.state import Pod, Snapshot, State
from pagefleet_gateway.limits.api_keys import APIKey, parse
from pagefleet_gateway.picking.routing import Refusal, route

CHAT = Service("team", "chat", "smol", (("a", 100),))
TWIN = Service("other", "chat", "smol", (("a", 100),))
CODE = Service("team", "code", "coder", (("a", 100),))


def snapshot(*services: Service) -> Snapshot:
    state = State()
    state.replace_services(services)
    return state.snapshot


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/team/chat/v1/chat/completions", b"not even JSON", CHAT),
        ("POST", "/team/chat/v1/completions?x=1", b"{}", CHAT),
        ("GET", "/team/code/v1/models", b"", CODE),
        ("POST", "/v1/completions", b'{"model": "coder"}', CODE),
        ("GET", "/v1/models/coder", b"", CODE),
        ("POST", "/team/absent/v1/completions", b"", (404, "service_not_found")),
        ("POST", "/v1/completions", b'{"model": "absent"}', (404, "model_not_found")),
        ("POST", "/v1/completions", b'{"model": "smol"}', TWIN),  # of equal age: by name
        ("GET", "/v1/models", b"", (400, "model_ambiguous")),
        ("DELETE", "/v1/cache/pins/pin_1", b"", (400, "model_ambiguous")),
        ("POST", "/v1/completions", b'{"model": 3}', (400, "model_required")),
        ("POST", "/v1/completions", b"[1]", (400, "model_required")),
        ("POST", "/v1/completions", b"[" * 100_000, (400, "invalid_json")),
        ("POST", "/v1/completions", b"\xff", (400, "invalid_json")),
        ("GET", "/team/chat/metrics", b"", (404, "path_not_found")),
        ("GET", "/a/b/c/v1/models", b"", (404, "path_not_found")),
    ],
)
def test_route(method: str, path: str, body: bytes, expected: Service | tuple[int, str]) -> None:
    routed = route(snapshot(CHAT, TWIN, CODE), method, path, body)
    if isinstance(routed, Refusal):
        assert (routed.status, routed.code) == expected
    else:
        assert routed == expected


def key(text: str) -> APIKey:
    return next(iter(parse(f"- {{name: k, key: sk-0123456789abcdef{text}}}").all))


OLD = Service("team", "chat", "smol", created="2026-01-01T00:00:00Z")
YOUNG = Service("evil", "chat", "smol", created="2026-02-01T00:00:00Z")
MINE = Service("mine", "own", "mini")
SMOL = b'{"model": "smol"}'


def by_model(services: tuple[Service, ...], of: APIKey | None, body: bytes = SMOL) -> Service | Refusal:
    return route(snapshot(*services), "POST", "/v1/completions", body, of)


@pytest.mark.parametrize("order", [(OLD, YOUNG), (YOUNG, OLD)])
def test_a_model_name_belongs_to_the_oldest_claim_and_nobody_is_refused(order: tuple[Service, ...]) -> None:
    assert by_model(order, None) == OLD
    assert by_model(order, key("")) == OLD
    assert by_model(order, key(", namespaces: [team, evil]")) == OLD
    granted = (OLD, replace(YOUNG, owns_name=True))  # the operator granted it first, whatever the age
    assert by_model(granted, None) == granted[1]


def test_a_key_asks_among_its_own_services_only() -> None:
    services = (OLD, YOUNG, MINE)
    assert by_model(services, key(", namespaces: [evil]")) == YOUNG
    assert by_model(services, key(", services: [evil/chat]")) == YOUNG
    refused = by_model(services, key(", namespaces: [mine]"))
    assert isinstance(refused, Refusal) and (refused.status, refused.code) == (404, "model_not_found")
    assert "evil" not in refused.message and "team" not in refused.message
    listed = route(snapshot(*services), "GET", "/v1/models", b"", key(", namespaces: [mine]"))
    assert listed == MINE


def test_a_path_that_the_key_may_not_use_is_refused_alike_whether_or_not_it_exists() -> None:
    refusals = [
        route(snapshot(OLD), "POST", f"/team/{name}/v1/completions", b"", key(", namespaces: [mine]"))
        for name in ("chat", "absent")
    ]
    assert [(one.status, one.code) for one in refusals if isinstance(one, Refusal)] == [
        (403, "service_not_allowed")
    ] * 2
    assert [one.service for one in refusals if isinstance(one, Refusal)] == [("team", "chat"), None]


@pytest.mark.parametrize("prefix", ["/v1", "/team/chat/v1"])
@pytest.mark.parametrize(
    "endpoint", ["/load_lora_adapter", "/unload_lora_adapter", "/load%5Flora_adapter", "/unload_lora_adapter/?x=1"]
)
def test_adapters_are_changed_only_with_a_key_that_may(prefix: str, endpoint: str) -> None:
    def asked(of: APIKey | None) -> Service | Refusal:
        return route(snapshot(OLD), "POST", prefix + endpoint, SMOL, of)

    for of in (None, key(""), key(", manageAdapters: false")):
        refused = asked(of)
        assert isinstance(refused, Refusal) and (refused.status, refused.code) == (403, "path_not_allowed")
    assert asked(key(", manageAdapters: true")) == OLD


def test_who_lost_a_name_does_not_inherit_it() -> None:
    lost = replace(YOUNG, name_lost="ModelNameReleasedElsewhere")
    refused = by_model((lost,), None)
    assert isinstance(refused, Refusal) and refused.code == "model_not_found"
    assert "/evil/chat/v1/completions" in refused.message
    assert isinstance(by_model((lost,), key(", namespaces: [team, evil]")), Refusal)
    assert by_model((lost,), key(", namespaces: [evil]")) == lost  # it never saw the one that is gone
    assert isinstance(by_model((replace(lost, name_lost="ModelNameReleased"),), key(", namespaces: [evil]")), Refusal)
    assert isinstance(by_model((lost,), key(", namespaces: [mine]")), Refusal)


def test_the_claim_is_read_from_the_status() -> None:
    raw = {
        "metadata": {"namespace": "team", "name": "chat", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"model": {"servedName": "smol"}},
        "status": {"modelName": "smol", "conditions": [{"type": "Ready", "status": "False", "reason": "x"}]},
    }
    service = service_from(raw)
    assert (service.owns_name, service.name_lost, service.created) == (True, "", "2026-01-01T00:00:00Z")
    condition = {"type": "ModelNameOwned", "status": "False", "reason": "ModelNameTaken"}
    lost = service_from({**raw, "status": {"modelName": "old", "conditions": [condition]}})
    assert (lost.owns_name, lost.name_lost) == (False, "ModelNameTaken")


def test_one_service_answers_for_the_whole_gateway() -> None:
    assert route(snapshot(CODE), "GET", "/v1/models", b"") == CODE
    assert route(snapshot(CODE), "DELETE", "/v1/cache/pins/pin_1", b"") == CODE


def test_an_inference_service_is_read_in_full() -> None:
    raw = {
        "metadata": {"namespace": "team", "name": "chat"},
        "spec": {
            "model": {"servedName": "smol"},
            "rollout": {"route": {"header": {"X-Canary": "always"}, "stickyBy": "header/X-Session-Id"}},
            "traffic": {"timeout": "1m30s", "retries": 5},
        },
        "status": {
            "canary": "b",
            "traffic": [{"revision": "a", "weight": 90}, {"revision": "b", "weight": 10}],
        },
    }
    assert service_from(raw) == Service(
        "team",
        "chat",
        "smol",
        (("a", 90), ("b", 10)),
        "b",
        (("x-canary", "always"),),
        "x-session-id",
        90.0,
        5,
    )


def test_time_limits_before_and_between_tokens_are_read() -> None:
    traffic: dict[str, object] = {"firstTokenTimeout": "1m30s", "nextTokenTimeout": "500ms", "timeout": "10m"}
    raw = {"metadata": {"namespace": "n", "name": "s"}, "spec": {"traffic": traffic}}
    service = service_from(raw)
    assert (service.first_token_seconds, service.next_token_seconds, service.timeout_seconds) == (90.0, 0.5, 600.0)
    assert service_from({"spec": {"traffic": {"nextTokenTimeout": 3}}}).next_token_seconds is None


def test_holding_priorities_and_limits_are_read() -> None:
    traffic = {
        "circuitBreaker": {"maxRequestsPerPod": 8},
        "queue": {"timeout": "20s", "maxRequests": 9, "maxBytes": 1000, "tenantHeader": "X-Tenant"},
        "priorities": [
            {"name": "high", "header": {"X-Priority": "high"}, "queue": {"timeout": "9h", "maxBytes": 2048}},
            {"name": "no header", "queue": {"maxRequests": 1}},
            {"name": "low", "header": {"x-priority": "low"}},
        ],
        "rateLimits": [{"header": "Authorization", "requestsPerMinute": 60, "tokensPerMinute": 9000}],
        "peak": {"maxOutputTokens": 64},
    }
    service = service_from({"spec": {"traffic": traffic}})
    assert (service.pod_limit, service.hold_seconds) == (8, 20.0)
    assert (service.hold_requests, service.hold_bytes, service.tenant_header) == (9, 1000, "x-tenant")
    assert service.priorities == ((("x-priority", "high"),), (("x-priority", "low"),))
    assert [service.priority({"x-priority": value}) for value in ("high", "low", "none")] == [0, 1, 2]
    assert service.priority_bounds == (QueueBounds(300.0, 0, 2048), QueueBounds())
    assert [service.hold_seconds_of(priority) for priority in (0, 1, 2)] == [300.0, 20.0, 20.0]
    assert service.limits == (RateLimit("authorization", 60, 9000),)
    assert service.peak_output_tokens == 64
    assert service_from({"spec": {}}).hold_seconds == 0.0
    assert service_from({"spec": {"traffic": {"peak": {"maxOutputTokens": "64"}}}}).peak_output_tokens == 0
    assert service_from({"spec": {"scaling": {"idleToZero": "15m"}}}).hold_seconds == 60.0
    external = service_from({"spec": {"scaling": {"mode": "external", "min": 0, "max": 8}}})
    assert external.hold_seconds == 60.0, "an HPA at zero replicas sees no request that does not wait"
    assert service_from({"spec": {"traffic": {"queue": {"timeout": "9h"}}}}).hold_seconds == 300.0


@pytest.mark.parametrize(
    ("mirror", "expected"),
    [
        ({"revision": "b", "percent": 10}, ("b", 10.0)),
        ({"revision": "b", "percent": 0}, ("", 0.0)),
        ({"revision": "b", "percent": "10"}, ("", 0.0)),
        (3, ("", 0.0)),
    ],
)
def test_mirror_and_fallback_are_read(mirror: object, expected: tuple[str, float]) -> None:
    service = service_from({"spec": {"traffic": {"fallback": {"service": "small"}}}, "status": {"mirror": mirror}})
    assert (service.fallback, service.mirror) == ("small", expected)


@pytest.mark.parametrize("poison", [None, 3, "text", [], [None], {"x": {}}, True])
def test_a_poisoned_object_is_read_without_an_error(poison: object) -> None:
    bare = Service("team", "chat")
    metadata = {"namespace": "team", "name": "chat", "uid": "1"}
    assert service_from({"metadata": metadata, "spec": poison, "status": poison}) == bare
    parts = {"model": poison, "rollout": {"route": poison}, "traffic": {"timeout": poison, "retries": "x"}}
    assert service_from({"metadata": metadata, "spec": parts, "status": {"traffic": poison}}) == bare
    assert pod_from({"metadata": metadata, "status": poison}) is None
    pod = pod_from({"metadata": metadata, "status": {"podIP": "10.0.0.1", "conditions": poison}})
    assert pod is not None and not pod.ready


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("120s", 120.0), ("500ms", 0.5), ("1h30m", 5400.0), ("0s", None), ("2 s", None), ("", None)],
)
def test_duration(text: str, seconds: float | None) -> None:
    assert duration(text) == seconds


def test_a_terminating_pod_is_not_ready_and_an_ended_one_is_none() -> None:
    labels = {"pagefleet.io/service": "chat", "pagefleet.io/revision": "a"}
    metadata: dict[str, object] = {"namespace": "team", "name": "p", "uid": "1", "labels": labels}
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}], "phase": "Running"}
    pod = pod_from({"metadata": metadata, "status": status})
    assert pod == Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000", True, own_engine([]))
    leaving = pod_from({"metadata": metadata | {"deletionTimestamp": "now"}, "status": status})
    assert leaving is not None and not leaving.ready
    assert pod_from({"metadata": metadata, "status": status | {"phase": "Failed"}}) is None
    six = pod_from({"metadata": metadata, "status": status | {"podIP": "fd00::7"}})
    assert six is not None and six.address == "[fd00::7]:8000"


def test_a_pod_is_served_only_while_envoy_knows_it_and_it_is_ready() -> None:
    state = State()
    pod = Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000")
    state.put_pod(pod)
    assert state.snapshot.pods == {}
    state.confirm([pod])
    assert state.snapshot.pods == {("team", "chat"): {"a": (pod,)}}
    waiting = Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000", ready=False)
    state.put_pod(waiting)
    assert state.snapshot.pods == {}
    # Envoy was told while it was not ready: it may serve as soon as it is.
    state.confirm([waiting])
    state.put_pod(pod)
    assert state.snapshot.pods == {("team", "chat"): {"a": (pod,)}}
    # A new pod with the same address is not the one Envoy knows.
    state.replace_pods([Pod("2", "q", "team", "chat", "b", "10.0.0.1:8000")])
    assert state.snapshot.pods == {}


def test_silent_is_a_pod_that_only_its_node_controller_made_unready() -> None:
    labels = {"pagefleet.io/service": "chat", "pagefleet.io/revision": "a"}
    metadata: dict[str, object] = {"namespace": "team", "name": "p", "uid": "1", "labels": labels}

    def silent(true: tuple[str, ...], deleted: bool = False, gates: tuple[str, ...] = ()) -> bool:
        conditions = [{"type": kind, "status": "True"} for kind in true]
        pod = pod_from(
            {
                "metadata": metadata | ({"deletionTimestamp": "now"} if deleted else {}),
                "spec": {"readinessGates": [{"conditionType": gate} for gate in gates]},
                "status": {"podIP": "10.0.0.1", "phase": "Running", "conditions": conditions},
            }
        )
        assert pod is not None and not pod.ready
        return pod.silent

    assert silent(("ContainersReady",))
    assert not silent(())
    assert not silent(("ContainersReady",), deleted=True)
    assert not silent(("ContainersReady",), gates=("pagefleet.io/awake",))
    assert silent(("ContainersReady", "pagefleet.io/awake"), gates=("pagefleet.io/awake",))


def test_silent_pods_serve_only_while_no_revision_with_traffic_has_a_ready_one() -> None:
    state = State()
    state.put_service(Service("team", "chat", "", (("a", 100), ("b", 0))))
    quiet = Pod("1", "p", "team", "chat", "a", "10.0.0.1:8000", ready=False, silent=True)
    leaving = Pod("2", "q", "team", "chat", "a", "10.0.0.2:8000", ready=False)
    canary = Pod("3", "r", "team", "chat", "b", "10.0.0.3:8000")
    state.replace_pods([quiet, leaving])
    state.confirm([quiet, leaving, canary])
    assert state.snapshot.pods == {("team", "chat"): {"a": (quiet,)}}
    state.put_pod(canary)
    assert state.snapshot.pods == {("team", "chat"): {"a": (quiet,), "b": (canary,)}}, "b has no traffic"
    state.put_service(Service("team", "chat", "", (("a", 90), ("b", 10))))
    assert state.snapshot.pods == {("team", "chat"): {"b": (canary,)}}


def test_the_engines_container_is_read_from_a_pods_status() -> None:
    statuses = [{"name": "engine", "containerID": "c://1"}, {"name": "istio", "containerID": "c://2"}]
    raw = {"status": {"podIP": "10.0.0.1", "containerStatuses": statuses}}
    pod = pod_from(raw)
    assert pod is not None and pod.container == "c://1"
    other = pod_from(
        {"status": {"podIP": "10.0.0.1", "containerStatuses": [{"name": "server", "containerID": "c://3"}]}}
    )
    assert other is not None and other.container == "c://3"
    starting = pod_from({"status": {"podIP": "10.0.0.1", "containerStatuses": "soon"}})
    assert starting is not None and starting.container == ""
