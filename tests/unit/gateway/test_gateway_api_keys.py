"""API keys in a request's headers: which header counts, and which of them a front takes from a request to an engine.

Protects that the gateway and the engine read the same key of a request that has both headers, that no client's key reaches
an engine by either front, and that the key's name does, and no other name.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request
from prometheus_client import Gauge

from pagefleet_contract.headers import CLIENT_HEADER, PREFILL_HEADER
from pagefleet_engine.api.base.auth import Keys
from pagefleet_engine.api.base.errors import ApiError
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.fronts.authz import http_response
from pagefleet_gateway.fronts.ext_proc_messages import pick_response
from pagefleet_gateway.limits.api_keys import APIKeys, KeyFileError, parse
from pagefleet_gateway.limits.keyring import Keyring
from pagefleet_gateway.picking.pick import Pick
from pagefleet_gateway.picking.routing import Refusal, client_key

KEY, OTHER = "sk-one-0123456789", "sk-other-0123456789"
PICK = Pick("a", (Pod("x", "x", "team", "chat", "a", "10.0.0.1:8000"),), None, 0)


def engine_accepts(headers: dict[str, str]) -> bool:
    try:
        Keys(None, KEY).check(make_mocked_request("POST", "/v1/messages", headers))
    except ApiError:
        return False
    return True


@pytest.mark.parametrize(
    ("headers", "known"),
    [
        ({"authorization": f"Bearer {KEY}"}, True),
        ({"x-api-key": KEY}, True),
        ({"x-api-key": f" {KEY} "}, True),
        ({"x-api-key": OTHER}, False),
        ({"x-api-key": ""}, False),
        ({"x-api-key": f"Bearer {KEY}"}, False),
        ({"authorization": f"Bearer {KEY}", "x-api-key": KEY}, True),
        ({"authorization": f"Bearer {KEY}", "x-api-key": OTHER}, True),
        ({"authorization": f"Bearer {OTHER}", "x-api-key": KEY}, False),
        ({"authorization": f"Basic {KEY}", "x-api-key": KEY}, False),
        ({"authorization": "", "x-api-key": KEY}, False),
        ({}, False),
    ],
)
def test_the_gateway_reads_the_key_that_the_engine_reads(headers: dict[str, str], known: bool) -> None:
    keys = parse(f"- {{name: one, key: {KEY}}}")
    assert (keys.find(headers) is not None, engine_accepts(headers)) == (known, known)


def refusal(keys: APIKeys, headers: dict[str, str]) -> Refusal:
    refused = client_key(keys, headers)
    assert isinstance(refused, Refusal)
    return refused


def test_the_refusal_names_the_header_that_held_the_key() -> None:
    keys = parse(f"- {{name: one, key: {KEY}}}")
    assert "in `authorization`" in refusal(keys, {"authorization": "Bearer a", "x-api-key": "b"}).message
    assert "in `x-api-key`" in refusal(keys, {"x-api-key": "b"}).message
    assert "demands an API key" in refusal(keys, {}).message


def test_a_key_that_acts_for_clients_has_the_rights_of_the_client_that_it_names_and_none_of_its_own() -> None:
    keys = parse(
        f"[{{name: one, key: {KEY}, namespaces: [team]}}, {{name: batches, key: {OTHER}, actsForClients: true}}]"
    )
    own = {"authorization": f"Bearer {OTHER}"}
    assert (
        client_key(keys, own | {"pagefleet-acts-for": "one"})
        == keys.named("one")
        == client_key(keys, {"x-api-key": KEY})
    )
    for name, part in (("", "must name the client's key"), ("gone", "'gone'"), ("batches", "'batches'")):
        refused = refusal(keys, own | ({"pagefleet-acts-for": name} if name else {}))
        assert (refused.status, refused.code) == (403, "client_unknown") and part in refused.message
    # A client's own key acts for nobody: the header changes nothing.
    assert client_key(keys, {"x-api-key": KEY, "pagefleet-acts-for": "batches"}) == keys.named("one")


@pytest.mark.parametrize("field", ["namespaces", "services"])
@pytest.mark.parametrize("value", ["", "[]", "null", "~", "team", "[1]"])
def test_a_list_of_services_without_a_name_never_means_every_service(field: str, value: str) -> None:
    with pytest.raises(KeyFileError, match=rf"\[0\]\.{field}: must be a list of names"):
        parse(f"- name: one\n  key: {KEY}\n  {field}: {value}\n")


@pytest.mark.parametrize("field", ["namespaces: [team]", "tokensPerMinute: 5", "manageAdapters: true"])
def test_a_key_that_acts_for_clients_has_no_limits_of_its_own(field: str) -> None:
    name = field.split(":")[0]
    with pytest.raises(KeyFileError, match=rf"\[0\]\.{name}: not allowed with actsForClients"):
        parse(f"[{{name: a, key: {KEY}, actsForClients: true, {field}}}]")


@pytest.mark.parametrize(
    ("api_key", "engine_key", "added", "removed"),
    [
        ("", "", None, []),
        ("one", "", None, ["authorization", "x-api-key"]),
        ("one", "engines-own", "Bearer engines-own", ["x-api-key"]),
    ],
)
def test_both_fronts_take_the_clients_key_from_the_request(
    api_key: str, engine_key: str, added: str | None, removed: list[str]
) -> None:
    pick = Pick(PICK.revision, PICK.choices, None, 0, api_key=api_key, engine_key=engine_key)
    lines = dict(line.split(": ", 1) for line in http_response(pick).decode().split("\r\n") if ": " in line)
    assert (lines.get("authorization"), lines.get(CLIENT_HEADER, "")) == (added, api_key)
    assert lines.get("x-envoy-auth-headers-to-remove", "") == ",".join(removed)
    mutation = pick_response(pick)[0].header_mutation
    values = {one.header.key: one.header.raw_value.decode() for one in mutation.set_headers}
    assert (values.get("authorization"), values.get(CLIENT_HEADER, "")) == (added, api_key)
    # Another gateway does not remove what a client says of itself.
    assert list(mutation.remove_headers) == [*removed, *([] if api_key else [CLIENT_HEADER]), PREFILL_HEADER]


async def test_a_file_that_becomes_invalid_changes_nothing_and_is_valid_again_also_with_the_same_keys(
    tmp_path: Path,
) -> None:
    file, valid = tmp_path / "keys.yaml", Gauge("valid", "", registry=None)
    good = f"[{{name: one, key: {'k' * 16}}}]"
    file.write_text(good)
    keyring = Keyring(file, valid)
    date = good.replace("one", "2026-02-30")  # YAML takes it for a date
    texts = (None, good, "[]", "[]", None, "[]", good, good, date, good, "[" * 2000, good)
    for text, expected in ((text, int(text == good)) for text in texts):
        file.unlink(missing_ok=True)
        if text is not None:
            file.write_text(text)
        await keyring.renew(file)
        (sample,) = next(iter(valid.collect())).samples
        assert sample.value == expected, text
        assert keyring.keys is not None and len(keyring.keys) == 1
