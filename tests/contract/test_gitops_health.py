"""Protects the health checks that are shipped for Argo CD (Lua) and Flux (CEL): what they make of the statuses that the operator
writes in a rollout, a pause, a rollback and with a spec that it cannot use. The Lua is run by Envoy's LuaJIT, which has the
language of version 5.1 as Argo CD's interpreter has; the CEL by the evaluator that the operator has itself."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml
from cel_expr_python import cel
from support.virtual.cluster import Cluster

from pagefleet_gateway.envoy import process
from pagefleet_operator.domain.status import codec

GITOPS = Path(__file__).parents[2] / "manifests/gitops"
TYPE = "type.googleapis.com/envoy.extensions.filters."
# What a GitOps tool shows for each: Argo CD's health, and the first of Flux's expressions that holds.
EXPECTED = {
    "new": ("Progressing", "inProgress"),
    "starting": ("Progressing", "inProgress"),
    "serving": ("Healthy", "current"),
    "not yet seen": ("Progressing", "inProgress"),
    "canary": ("Progressing", "inProgress"),
    "paused": ("Suspended", "inProgress"),
    "rolled back": ("Degraded", "failed"),
    "invalid": ("Degraded", "failed"),
}


def objects() -> dict[str, dict[str, Any]]:
    """InferenceServices in the states of EXPECTED, as the operator's decisions leave them."""
    found: dict[str, dict[str, Any]] = {}

    def note(state: str) -> None:
        found[state] = {
            "metadata": {"name": "chat", "generation": cluster.generation},
            "status": codec.dump(cluster.status),
        }

    cluster = Cluster(1)
    found["new"] = {"metadata": {"name": "chat", "generation": 1}}
    cluster.tick()
    note("starting")
    cluster.serving()
    cluster.until(lambda status: cluster.condition("Progressing").status == "False")
    note("serving")
    cluster.edit(16)
    note("not yet seen")
    cluster.until(lambda status: cluster.weight() > 0)
    note("canary")
    cluster.act("pause")
    note("paused")
    cluster.act("abort")
    cluster.until(lambda status: cluster.condition("Progressing").status == "False")
    note("rolled back")
    cluster = Cluster(2)
    cluster.serving()
    cluster.request(engine={"runtime": "tgi", "toolCallParser": "hermes"})
    cluster.tick()
    note("invalid")
    return found


def lua(value: object) -> str:
    """A JSON value as a Lua table: Argo CD passes objects in the same way, lists from 1."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"[{json.dumps(key)}]={lua(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "{" + ",".join(map(lua, value)) + "}"
    return "nil" if value is None else json.dumps(value)


def program(script: str, cases: list[dict[str, Any]]) -> str:
    return (
        f"local function health(obj)\n{script}\nend\nlocal cases = {lua(cases)}\n"
        "function envoy_on_request(handle)\n"
        '  local found = health(cases[tonumber(handle:headers():get("case"))])\n'
        '  handle:respond({[":status"] = "200"}, found.status .. "\\n" .. found.message)\nend\n'
    )


async def argo_cd(folder: Path, cases: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Health and message of each object, by the script in argocd-cm."""
    (script,) = yaml.safe_load((GITOPS / "argo-cd.yaml").read_text())["data"].values()
    manager = {
        "@type": TYPE + "network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "lua",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"]}]},
        "http_filters": [
            {"name": "lua", "typed_config": {"@type": TYPE + "http.lua.v3.Lua",
                                             "default_source_code": {"inline_string": program(script, cases)}}},
            {"name": "router", "typed_config": {"@type": TYPE + "http.router.v3.Router"}},
        ],
    }  # fmt: skip
    listener = {
        "name": "lua",
        "address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}},
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }
    pipe = folder / "admin"
    bootstrap = {"admin": {"address": {"pipe": {"path": str(pipe)}}}, "static_resources": {"listeners": [listener]}}
    (folder / "envoy.json").write_text(json.dumps(bootstrap))
    options = ("--concurrency", "1", "--disable-hot-restart", "-l", "error")
    envoy = await asyncio.create_subprocess_exec(str(process.executable()), "-c", str(folder / "envoy.json"), *options)
    admin = process.Admin(pipe)
    try:
        async with asyncio.timeout(30):
            while not await admin.ready():
                assert envoy.returncode is None, "Envoy does not take the script"
                await asyncio.sleep(0.05)
        port, answers = await admin.port("lua"), []
        async with aiohttp.ClientSession() as session:
            for number in range(1, len(cases) + 1):
                async with session.get(f"http://127.0.0.1:{port}/", headers={"case": str(number)}) as answer:
                    assert answer.status == 200, "the script failed: Envoy's log has the line"
                    status, _, message = (await answer.text()).partition("\n")
                    answers.append((status, message))
        return answers
    finally:
        await admin.close()
        await process.stop(envoy, 5.0)


def flux(document: Mapping[str, Any]) -> str:
    """The name of the first expression that holds, in Flux's order. An expression about a field that is not there does not hold."""
    (check,) = yaml.safe_load((GITOPS / "flux.yaml").read_text())["spec"]["healthCheckExprs"]
    names = ("status", "metadata")
    environment = cel.NewEnv(variables=dict.fromkeys(names, cel.Type.DYN))
    values = environment.Activation({name: document.get(name, {}) for name in names})
    return next(
        (name for name in ("inProgress", "failed", "current")
         if environment.compile(check[name]).eval(values).value() is True), "none"
    )  # fmt: skip


@pytest.fixture(scope="module")
def states() -> dict[str, dict[str, Any]]:
    return objects()


async def test_argo_cd_shows_what_a_rollout_does(states: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    answers = dict(zip(states, await argo_cd(tmp_path, list(states.values())), strict=True))
    assert {state: health for state, (health, _) in answers.items()} == {
        state: health for state, (health, _) in EXPECTED.items()
    }
    assert "aborted by anna" in answers["rolled back"][1]
    assert "toolCallParser" in answers["invalid"][1]


@pytest.mark.parametrize("state", EXPECTED)
def test_flux_waits_and_fails_with_a_rollout(states: dict[str, dict[str, Any]], state: str) -> None:
    assert flux(states[state]) == EXPECTED[state][1]


def test_the_checks_are_of_our_kind() -> None:
    (key,) = yaml.safe_load((GITOPS / "argo-cd.yaml").read_text())["data"]
    (check,) = yaml.safe_load((GITOPS / "flux.yaml").read_text())["spec"]["healthCheckExprs"]
    assert key == "resource.customizations.health.pagefleet.io_InferenceService"
    assert (check["apiVersion"], check["kind"]) == ("pagefleet.io/v1alpha1", "InferenceService")


def test_every_cluster_is_in_one_wave() -> None:
    """The labels that the steps select are those that the template gives to the Applications."""
    spec = yaml.safe_load((GITOPS / "argo-cd-waves.yaml").read_text())["spec"]
    (clusters,) = (generator["list"]["elements"] for generator in spec["generators"])
    assert spec["template"]["metadata"]["labels"] == {"wave": "{{.wave}}"}
    waves = [
        value
        for step in spec["strategy"]["rollingSync"]["steps"]
        for one in step["matchExpressions"]
        if (one["key"], one["operator"]) == ("wave", "In")
        for value in one["values"]
    ]
    assert len(waves) == len(set(waves)) == len(spec["strategy"]["rollingSync"]["steps"])
    assert {one["wave"] for one in clusters} == set(waves)
