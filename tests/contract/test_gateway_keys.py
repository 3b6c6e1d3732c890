"""API keys and quotas, trace context and sticky choices, as a client meets them: a real Envoy and the real picker.

Protects that without a known key nothing is told, that a key's name is seen and the key itself never, quotas, live
reload, and that gateway replicas agree on whom a sticky session meets.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.gateway.fleet import CANARY, STABLE, Fleet, running, until

from pagefleet_gateway.app import Gateway
from pagefleet_gateway.cluster.state import State
from pagefleet_gateway.limits.api_keys import KeyFileError, parse
from pagefleet_gateway.settings import Settings

ONE, TWO, THREE = "sk-one-0123456789", "sk-two-0123456789", "sk-three-0123456789"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def keys_file(folder: Path) -> Path:
    file = folder / "keys.yaml"
    entries = [
        {"name": "one", "key": ONE},
        {"name": "two", "sha256": hashlib.sha256(TWO.encode()).hexdigest(), "services": ["team/other"]},
        {"name": "three", "key": THREE, "namespaces": ["team"], "requestsPerMinute": 2},
    ]
    file.write_text(yaml.safe_dump(entries))
    return file


async def asked(fleet: Fleet, headers: dict[str, str]) -> tuple[int, object, dict[str, str]]:
    status, body, got = await fleet.chat(headers=headers)
    error = body.get("error")
    return status, error["code"] if isinstance(error, dict) else None, got


async def test_a_key_opens_its_services_within_its_quota_and_is_never_shown(tmp_path: Path) -> None:
    async with running(api_keys_file=keys_file(tmp_path)) as fleet:
        engine = await fleet.engine(STABLE, token_report="trailer")
        fleet.serve((STABLE, 100))
        for headers in (
            {},
            bearer("sk-wrong-0123456789"),
            {"authorization": f"Basic {ONE}"},
            {"x-api-key": "sk-wrong"},
        ):
            status, code, got = await asked(fleet, headers)
            assert (status, code, got["www-authenticate"]) == (401, "invalid_api_key", "Bearer")
        assert (await fleet.chat("/team/absent/v1/chat/completions"))[0] == 401  # not: there is no such service
        assert (await asked(fleet, bearer(ONE)))[0] == 200
        assert (await asked(fleet, bearer(TWO)))[:2] == (403, "service_not_allowed")
        answers = [await asked(fleet, bearer(THREE)) for _ in range(3)]
        assert [status for status, _, _ in answers] == [200, 200, 429]
        assert answers[2][1] == "rate_limit_exceeded" and 20 <= int(answers[2][2]["retry-after"]) <= 30
        assert all("authorization" not in {name.lower() for name in one.headers} for one in engine.requests)
        await until(lambda: len(fleet.lines) == 10)
        logged = Counter((line.get("key"), line["code"]) for line in fleet.lines)
        assert logged == {(None, 401): 5, ("one", 200): 1, ("two", 403): 1, ("three", 200): 2, ("three", 429): 1}
        async with fleet.http.get(f"http://127.0.0.1:{fleet.gateway.internal_port}/metrics") as response:
            text = await response.text()
        assert 'pagefleet_gateway_key_requests_total{code="200",key="three"} 2.0' in text
        labels = 'key="three",kind="output",namespace="team",service="chat"'
        assert f"pagefleet_gateway_key_tokens_total{{{labels}}} 6.0" in text
        assert 'kind="prompt"' in text and 'pagefleet_gateway_key_month_tokens{key="one"}' in text
        shown = text + json.dumps(fleet.lines)
        assert not any(key in shown for key in (ONE, TWO, THREE))


async def test_a_monthly_budget_is_one_of_all_gateways_and_outlives_a_gateway(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": "one", "key": ONE, "tokensPerMonth": 20}]))

    def meet(one: Fleet, two: Fleet) -> None:
        for fleet, other in ((one, two), (two, one)):
            name = other.gateway.settings.pod_name
            fleet.gateway.members.put(name, f"127.0.0.1:{other.gateway.internal_port}")

    def used(fleet: Fleet) -> int:
        return fleet.gateway.picker.limits.budgets.used("one")

    async with running(api_keys_file=file, pod_name="a") as one:
        engine = await one.engine(STABLE, token_report="trailer")
        one.serve((STABLE, 100))
        async with running(api_keys_file=file, pod_name="b") as two:
            two.state.replace_pods([engine.pod()])
            two.serve((STABLE, 100))
            await until(lambda: engine.pod() in two.serving())
            meet(one, two)
            for fleet in (one, two):
                assert (await asked(fleet, bearer(ONE)))[0] == 200
            await until(lambda: used(one) == used(two) > 10)
            before = used(one)
        # Gateway b is gone. A new one hears from a what b has counted.
        async with running(api_keys_file=file, pod_name="b") as three:
            three.state.replace_pods([engine.pod()])
            three.serve((STABLE, 100))
            await until(lambda: engine.pod() in three.serving())
            meet(one, three)
            await until(lambda: used(three) == before)
            while used(three) < 20:
                assert (await asked(three, bearer(ONE)))[0] == 200
                known = used(one)
                await until(lambda known=known: used(one) == used(three) > known)
            for fleet in (one, three):
                status, code, headers = await asked(fleet, bearer(ONE))
                assert (status, code) == (429, "insufficient_quota") and int(headers["retry-after"]) > 0


async def test_a_gateway_alone_keeps_a_spent_budget_when_its_container_restarts(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(yaml.safe_dump([{"name": "one", "key": ONE, "tokensPerMonth": 2}]))
    settings = {"api_keys_file": file, "budgets_file": tmp_path / "budgets.json"}
    async with running(**settings) as fleet:
        await fleet.engine(STABLE, token_report="trailer")
        fleet.serve((STABLE, 100))
        assert (await asked(fleet, bearer(ONE)))[0] == 200
        await until(lambda: fleet.gateway.picker.limits.budgets.used("one") >= 2)
    async with running(**settings) as fleet:
        await fleet.engine(STABLE, token_report="trailer")
        fleet.serve((STABLE, 100))
        assert (await asked(fleet, bearer(ONE)))[:2] == (429, "insufficient_quota")


async def test_anthropics_client_sends_its_key_in_its_own_header_which_no_engine_sees(tmp_path: Path) -> None:
    async with running(api_keys_file=keys_file(tmp_path)) as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        asked = {"model": "smol", "max_tokens": 8, "messages": [{"role": "user", "content": "hello"}]}

        async def ask(headers: dict[str, str]) -> tuple[int, dict[str, Any]]:
            async with fleet.http.post(f"{fleet.url}/v1/messages", json=asked, headers=headers) as response:
                return response.status, await response.json()

        wrong = {"x-api-key": "sk-wrong-0123456789"}
        assert (await ask({"x-api-key": ONE}))[0] == 200
        assert (await ask(bearer(ONE) | wrong))[
            0
        ] == 200  # the engines' rule: Authorization alone counts where it is given
        for headers in (wrong, bearer("sk-wrong-0123456789") | {"x-api-key": ONE}):
            status, body = await ask(headers)
            sent = "authorization" if "authorization" in headers else "x-api-key"
            assert status == 401 and body["error"]["code"] == "invalid_api_key"
            assert f"`{sent}`" in body["error"]["message"] and "sk-" not in str(body)
        assert len(engine.requests) == 2
        assert not any({"authorization", "x-api-key"} & set(one.headers) for one in engine.requests)
        await until(lambda: len(fleet.lines) == 4)
        assert not any(key in json.dumps(fleet.lines) for key in (ONE, *wrong.values()))


async def test_a_changed_file_is_in_force_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file = keys_file(tmp_path)
    async with running(api_keys_file=file) as fleet:
        await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))

        async def status(key: str) -> int:
            return (await asked(fleet, bearer(key)))[0]

        async def valid() -> str:
            async with fleet.http.get(f"http://127.0.0.1:{fleet.gateway.internal_port}/metrics") as response:
                (line,) = [one for one in (await response.text()).splitlines() if one.startswith(METRIC)]
                return line.removeprefix(METRIC)

        async def invalid() -> bool:
            return await valid() == "0.0"

        async def refused() -> bool:
            return await status(ONE) == 401

        file.write_text("- name: one\n  key: short\n")
        await until(invalid)
        assert await status(ONE) == 200
        fresh = tmp_path / "fresh"
        fresh.write_text(yaml.safe_dump([{"name": "new", "key": "sk-new-0123456789"}]))
        fresh.replace(file)
        await until(refused)
        assert await status("sk-new-0123456789") == 200 and await valid() == "1.0"
        file.unlink()
        await until(invalid)
        assert await status("sk-new-0123456789") == 200


METRIC = "pagefleet_gateway_api_keys_valid "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a list"),
        ("a: [", "is not YAML"),
        ("- 3", "[0]: must be a mapping"),
        ("- {name: a, key: sk-0123456789abcdef, rpm: 3}", "[0].rpm: unknown"),
        ("- {name: 'a b', key: sk-0123456789abcdef}", "[0].name"),
        ("- {name: a}", "either `key` or `sha256`"),
        ("- {name: a, key: short}", "[0].key"),
        ("- {name: a, key: sk-0123456789abcdef, manageAdapters: 1}", "[0].manageAdapters"),
        ("- {name: a, sha256: abc}", "[0].sha256"),
        ("- {name: a, key: sk-0123456789abcdef, namespaces: []}", "[0].namespaces"),
        ("- {name: a, key: sk-0123456789abcdef, services: [chat]}", "[0].services"),
        ("- {name: a, key: sk-0123456789abcdef, tokensPerMinute: -1}", "[0].tokensPerMinute"),
        ("- {name: a, key: sk-0123456789abcdef}\n- {name: a, key: sk-0123456789abcdeg}", "same name"),
        ("- {name: a, key: sk-0123456789abcdef}\n- {name: b, key: sk-0123456789abcdef}", "same key"),
    ],
)
def test_a_wrong_file_is_refused_by_field_and_its_keys_are_not_quoted(text: str, message: str) -> None:
    with pytest.raises(KeyFileError) as caught:
        parse(text)
    assert message in str(caught.value) and "0123456789abcde" not in str(caught.value)


def test_a_file_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    settings = Settings(api_keys_file=tmp_path / "absent", temporary=tmp_path)
    with pytest.raises(KeyFileError, match="PAGEFLEET_GATEWAY_API_KEYS_FILE"):
        Gateway(settings, State(), lambda _: None)


async def test_a_trace_is_passed_on_and_begun_where_there_is_none() -> None:
    async with running() as fleet:
        engine = await fleet.engine(STABLE)
        fleet.serve((STABLE, 100))
        given = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
        assert (await fleet.chat(headers={"traceparent": given, "tracestate": "a=b"}))[0] == 200
        assert (await fleet.chat())[0] == 200
        assert (await fleet.chat(headers={"traceparent": "00-" + "0" * 32 + "-b7ad6b7169203331-01"}))[0] == 200
        sent = [request.headers.getall("traceparent") for request in engine.requests]
        assert sent[0] == [given] and engine.requests[0].headers["tracestate"] == "a=b"
        made = [one for values in sent[1:] for one in values]
        assert len(made) == len(set(made)) == 2
        assert all(one.startswith("00-") and len(one) == 55 and one.endswith("-00") for one in made)
        await until(lambda: len(fleet.lines) == 3)
        assert [line["traceparent"] for line in fleet.lines] == [given, *made]


async def test_two_gateways_send_a_session_to_the_same_revision_without_knowing_of_each_other() -> None:
    weights = ((STABLE, 70), (CANARY, 30))
    async with AsyncExitStack() as stack:
        fleets = [await stack.enter_async_context(running()) for _ in range(2)]
        met: list[dict[str, str]] = []
        for index, fleet in enumerate(fleets):
            fleet.hosts = 100 + 20 * index
            await fleet.engine(STABLE)
            await fleet.engine(CANARY)
            # The order in which a status lists its revisions is nobody's promise.
            fleet.serve(*(weights if index else reversed(weights)), sticky_header="x-session-id")
            answers = {name: await fleet.chat(headers={"x-session-id": f"s{name}"}) for name in range(40)}
            met.append({str(name): got["x-pagefleet-revision"] for name, (_, _, got) in answers.items()})
        assert met[0] == met[1]
        assert set(met[0].values()) == {STABLE, CANARY}
