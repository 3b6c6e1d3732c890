"""The gateway's settings: bounds that are named, and times that fit together. Protects that an answer as long as the longest
that is allowed by default survives a rollout of the gateway, and that no connection is reused while its engine closes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from pagefleet_contract.quantity import seconds
from pagefleet_contract.traffic import DEFAULT_TIMEOUT
from pagefleet_gateway.envoy import timeouts
from pagefleet_gateway.envoy.routes import routes
from pagefleet_gateway.settings import (
    DRAIN_SECONDS,
    SETTLE_SECONDS,
    SPARE_SECONDS,
    STOP_SECONDS,
    SettingError,
    settings_from,
)

MANIFEST = Path(__file__).resolve().parents[3] / "manifests/gateway/gateway.yaml"
UVICORN_KEEP_ALIVE = 5  # seconds, its default: vLLM and SGLang serve with it


def test_a_pod_s_grace_period_holds_the_settle_the_drain_and_the_stop() -> None:
    (deployment,) = (one for one in yaml.safe_load_all(MANIFEST.read_text()) if one["kind"] == "Deployment")
    grace = deployment["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace == SETTLE_SECONDS + DRAIN_SECONDS + STOP_SECONDS + SPARE_SECONDS
    assert seconds(DEFAULT_TIMEOUT) <= DRAIN_SECONDS


def test_an_engine_s_connection_is_closed_before_its_engine_does() -> None:
    assert timeouts.ENGINE_IDLE_SECONDS < UVICORN_KEEP_ALIVE


def test_no_route_ends_a_request_before_its_service_s_own_limit() -> None:
    """`spec.traffic` allows 24 h. Only a silence that `nextTokenTimeout` names ends a stream sooner."""
    (host,) = routes(1024)["virtual_hosts"]  # type: ignore[misc, attr-defined]
    engine_routes = [route for route in host["routes"] if "route" in route]  # type: ignore[index]
    idle = {route["route"]["idle_timeout"] for route in engine_routes if "headers" not in route["match"]}
    assert idle == {"0s"}
    assert max(timeouts.SILENCE_STEPS) == 24 * 3600


def test_only_silence_ends_the_download_of_a_batch_s_output() -> None:
    (host,) = routes(1024, batches=True)["virtual_hosts"]  # type: ignore[misc, attr-defined]
    route = host["routes"][0]["route"]  # type: ignore[index]
    assert (route["cluster"], route["timeout"], route["idle_timeout"]) == ("batches", "0s", "600s")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("PAGEFLEET_GATEWAY_MAX_CONNECTIONS", "0", "must be from 1 to 1000000"),
        ("PAGEFLEET_GATEWAY_MAX_HEAP_MIB", "63", "must be from 64 to 65536"),
        ("PAGEFLEET_GATEWAY_MAX_HEAP_MIB", "1Gi", "must be a whole number from 64 to 65536"),
        ("PAGEFLEET_GATEWAY_DRAIN_SECONDS", "86401", "must be from 0 to 86400"),
        ("PAGEFLEET_GATEWAY_BATCHES", "pagefleet-batches", "must be <host>:<port>"),
        ("PAGEFLEET_GATEWAY_BATCHES", "pagefleet-batches:0", "must be <host>:<port>"),
    ],
)
def test_a_limit_out_of_range_is_named(name: str, value: str, message: str) -> None:
    with pytest.raises(SettingError, match=f"{name}={value}.*: {message}|{name}='{value}': {message}"):
        settings_from({name: value})


def test_envoy_s_limits_are_settings() -> None:
    settings = settings_from({"PAGEFLEET_GATEWAY_MAX_CONNECTIONS": "50000", "PAGEFLEET_GATEWAY_MAX_HEAP_MIB": "2048"})
    assert (settings.max_connections, settings.max_heap_bytes) == (50_000, 2048 * 1024 * 1024)
