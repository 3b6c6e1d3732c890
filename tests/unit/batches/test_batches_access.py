"""Protects who gets in: nobody while it is not known whether the gateway demands keys, nobody where it does and this server cannot tell
clients apart, and the clients of the file elsewhere. A gateway that does not answer for a while changes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import Gauge

from pagefleet_batches.access import Access
from pagefleet_batches.jobs.errors import ApiError
from pagefleet_gateway.limits.api_keys import KeyFileError

ONE, OWN = "sk-one-0123456789", "sk-batches-0123456789"
KEYS = f"[{{name: one, key: {ONE}}}, {{name: batches, key: {OWN}, actsForClients: true}}]"


class Gateway:
    """Answers a question with the status that its test sets, and remembers the keys."""

    def __init__(self, status: int) -> None:
        self.status = status
        self.asked: list[str] = []

    async def probe(self, key: str) -> int:
        self.asked.append(key)
        return self.status


def access(folder: Path, gateway: Gateway, keys: str = "", own: str = "") -> Access:
    for name, text in (("keys.yaml", keys), ("key", own)):
        if text:
            (folder / name).write_text(text)
    return Access(folder / "keys.yaml", folder / "key", gateway.probe, Gauge("valid", "", registry=None))


def refusal(one: Access, **headers: str) -> ApiError:
    with pytest.raises(ApiError) as raised:
        one.client({name.replace("_", "-"): value for name, value in headers.items()})
    return raised.value


@pytest.mark.parametrize("status", [0, 200, 404, 500, 503])
async def test_nobody_gets_in_before_the_gateway_has_told(tmp_path: Path, status: int) -> None:
    for keys in ("", KEYS):
        one = access(tmp_path, Gateway(status), keys, OWN)
        assert refusal(one).status == 503
        await one.check()
        assert "does not answer" in refusal(one, x_api_key=ONE).message


@pytest.mark.parametrize("status", [401, 403])
async def test_nobody_gets_in_where_the_gateway_demands_keys_that_are_not_here(tmp_path: Path, status: int) -> None:
    one = access(tmp_path, Gateway(status))
    await one.check()
    refused = refusal(one, x_api_key=ONE)
    assert (refused.status, refused.code, refused.retry_after) == (503, "batches_unavailable", 5)


async def test_everybody_gets_in_where_the_gateway_demands_no_key(tmp_path: Path) -> None:
    gateway = Gateway(400)
    one = access(tmp_path, gateway)
    await one.check()
    assert one.client({}) is None and one.line_key == "" and gateway.asked == [""]
    gateway.status = 503
    await one.check()
    assert one.client({}) is None
    gateway.status = 401  # its operator has turned keys on
    await one.check()
    assert "demands API keys" in refusal(one).message


async def test_clients_of_the_file_get_in_where_the_own_key_acts_for_them(tmp_path: Path) -> None:
    gateway = Gateway(403)
    one = access(tmp_path, gateway, KEYS, OWN + "\n")
    await one.check()
    key = one.client({"authorization": f"Bearer {ONE}"})
    assert key is not None and key.name == "one" and one.line_key == OWN and gateway.asked == [OWN]
    assert (refusal(one).status, refusal(one, x_api_key="wrong").code) == (401, "invalid_api_key")
    assert refusal(one, x_api_key=OWN).code == "client_unknown"


@pytest.mark.parametrize(
    ("status", "part"), [(401, "does not know this server's key"), (400, "needs actsForClients: true")]
)
async def test_an_own_key_that_does_not_fit_is_told(tmp_path: Path, status: int, part: str) -> None:
    one = access(tmp_path, Gateway(status), KEYS, OWN)
    await one.check()
    assert part in one.reason and refusal(one, x_api_key=ONE).status == 503


async def test_files_that_come_later_are_read(tmp_path: Path) -> None:
    gateway = Gateway(401)
    one = access(tmp_path, gateway)
    await one.check()
    assert one.reason
    (tmp_path / "keys.yaml").write_text(KEYS)
    (tmp_path / "key").write_text(OWN)
    gateway.status = 403
    one.read()
    await one.check()
    assert not one.reason and one.client({"x-api-key": ONE}) is not None


def test_clients_of_one_scope_may_ask_the_same_services(tmp_path: Path) -> None:
    keys = f"[{{name: one, key: {ONE}, namespaces: [b, a], services: [c/d]}}, {{name: all, key: {OWN}}}]"
    one = access(tmp_path, Gateway(403), keys)
    assert [one.scope(client) for client in ("one", "all", "gone")] == ["a,b,c/d", "", ""]
    (tmp_path / "keys.yaml").unlink()
    assert access(tmp_path, Gateway(400)).scope("") == ""


@pytest.mark.parametrize("key", [b"\xff\xfe\x00" * 8, b"sk-\x00-0123456789", "sk-é-0123456789".encode()])
def test_a_key_of_its_own_that_no_header_can_carry_is_refused_by_its_file(tmp_path: Path, key: bytes) -> None:
    one = access(tmp_path, Gateway(403), KEYS, OWN)
    (tmp_path / "key").write_bytes(key)
    with pytest.raises(KeyFileError, match=r"PAGEFLEET_BATCHES_KEY_FILE: .*/key must have a key of printable ASCII"):
        one.read()
    assert one.own_key == OWN
