"""Protects the gateway's view of pods and services: whatever comes in whatever order, the snapshot, of which only the services that have
changed are built again, is the one that a new state with the same objects has; and the file of endpoints that is written in steps is the
one that is written at once, without prefill pods."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.envoy.endpoints import Endpoints, endpoints_discovery

PODS = st.builds(
    lambda uid, service, revision, ready, silent, container, prefills: Pod(
        f"u{uid}", f"p{uid}", "team", service, revision, f"10.0.0.{uid // 2}:80", ready, silent=silent, container=container,
        prefills=prefills,
    ),
    st.integers(0, 5), st.sampled_from("xy"), st.sampled_from("ab"), st.booleans(), st.booleans(), st.sampled_from(["", "c"]),
    st.booleans(),
)  # fmt: skip
SERVICES = st.builds(
    lambda name, model, weights, owns: Service("team", name, model, weights, owns_name=owns),
    st.sampled_from("xy"), st.sampled_from(["m", "n", ""]), st.sampled_from([(("a", 100),), (("a", 50), ("b", 50)), ()]), st.booleans(),
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.just("put pod"), PODS)
    | st.tuples(st.just("remove pod"), st.integers(0, 5))
    | st.tuples(st.just("replace pods"), st.lists(PODS, max_size=5, unique_by=lambda pod: pod.uid))
    | st.tuples(st.just("put service"), SERVICES)
    | st.tuples(st.just("remove service"), st.sampled_from("xy"))
    | st.tuples(st.just("replace services"), st.lists(SERVICES, max_size=2, unique_by=lambda service: service.name))
    | st.tuples(st.just("confirm"), st.none())
    | st.tuples(st.just("read"), st.none()),
    max_size=25,
)


@given(STEPS)
def test_the_snapshot_is_that_of_a_new_state_with_the_same_objects(steps: list[tuple[str, object]]) -> None:
    state, services, confirmed = State(), dict[str, Service](), tuple[Pod, ...]()
    for step in steps:
        match step:
            case "put pod", Pod() as pod:
                state.put_pod(pod)
            case "remove pod", number:
                state.remove_pod(f"u{number}")
            case "replace pods", list() as pods:
                state.replace_pods(pods)
            case "put service", Service() as service:
                state.put_service(service)
                services[service.name] = service
            case "remove service", str() as name:
                state.remove_service(("team", name))
                services.pop(name, None)
            case "replace services", list() as several:
                state.replace_services(several)
                services = {service.name: service for service in several}
            case "confirm", _:
                confirmed = state.pods
                state.confirm(confirmed)
            case _:
                assert state.snapshot is state.snapshot
    fresh = State()
    fresh.replace_services(services.values())
    fresh.replace_pods(state.pods)
    fresh.confirm(confirmed)
    one, two = state.snapshot, fresh.snapshot
    assert one.services == two.services and dict(one.by_model) == dict(two.by_model)
    uids = [
        {key: {name: sorted(pod.uid for pod in group) for name, group in by.items()} for key, by in view.pods.items()}
        for view in (one, two)
    ]
    assert uids[0] == uids[1]
    for by in one.pods.values():
        for pod in (pod for group in by.values() for pod in group):
            assert pod in state.pods and pod.may_answer and any(pod.uid == known.uid for known in confirmed)


@given(st.lists(st.lists(PODS, max_size=6, unique_by=lambda pod: pod.uid), min_size=1, max_size=3))
def test_a_file_that_is_written_in_steps_is_the_one_that_is_written_at_once(lists: list[list[Pod]]) -> None:
    async def write() -> None:
        with tempfile.TemporaryDirectory() as folder:
            state, file = State(), Path(folder) / "endpoints.json"
            endpoints = Endpoints(state, file)
            for pods in lists:
                state.replace_pods(pods)
                version, written = await endpoints.write_in_steps()
                assert written == tuple(pod for pod in state.pods if not pod.prefills)
                assert json.loads(file.read_text()) == endpoints_discovery(version, written)

    asyncio.run(write())
