"""Protects the operator's credentials in a cluster: a service account's token of ten minutes, mounted as a kubelet does it. When
the token has been replaced and the old one is refused, nothing is missed and nothing restarts. While it is refused and not yet
replaced the operator changes nothing; with the next token it goes on (row 33 of the reliability table). A token ends early here
because the Secret that it is bound to is deleted; the API server remembers tokens for ten seconds. With PAGEFLEET_TOKEN_EXPIRES=1
each test waits until the token's ten minutes are over, and a token in time is one that is replaced after eight."""

from __future__ import annotations

import asyncio
import itertools
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from faults.operator_process import Operator
from faults.runs import Ground
from faults.story import Story

from pagefleet_contract.names import OPERATOR, SYSTEM_NAMESPACE
from pagefleet_local.base.certificates import Authority
from pagefleet_local.fleet.kubectl import until

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
MINUTES_10 = 600  # seconds: the API server grants no shorter ones, and accepts an expired token for a minute more
EXPIRES = os.environ.get("PAGEFLEET_TOKEN_EXPIRES") == "1"
ENDED_SECONDS = MINUTES_10 + 120.0 if EXPIRES else 20.0  # within which the API server refuses a token
RECOVERY_SECONDS = 15.0
SECRETS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/secrets"
TOKENS = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts/{OPERATOR}/token"


@dataclass
class Account:
    """The folder of a pod's service account. `replace` writes the next token, `end` ends one."""

    ground: Ground
    folder: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.folder.mkdir()
        (self.folder / "ca.crt").write_bytes(Path(self._authority.pair.certificate).read_bytes())

    @property
    def token(self) -> str:
        return (self.folder / "token").read_text()

    async def replace(self) -> str:
        """Write a token that is bound to a Secret of its own, in one step as a kubelet does. Return the Secret's name."""
        name = f"{self.folder.name}-{next(self.numbers)}"
        secret = await self.ground.api.create(
            SECRETS, {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}}
        )
        bound = {"apiVersion": "v1", "kind": "Secret", "name": name, "uid": secret["metadata"]["uid"]}
        spec = {"expirationSeconds": MINUTES_10, "boundObjectRef": bound}
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        granted = await self.ground.api.create(TOKENS, request)
        (self.folder / "next").write_text(granted["status"]["token"])
        (self.folder / "next").rename(self.folder / "token")
        return name

    async def end(self, name: str, token: str) -> None:
        """Delete a token's Secret, or await its last minute. Return when the API server refuses the token."""
        if not EXPIRES:
            secret = await self.ground.api.get(f"{SECRETS}/{name}")
            await self.ground.api.delete(f"{SECRETS}/{name}", secret["metadata"]["uid"])
        await until(lambda: self._refused(token), timeout=ENDED_SECONDS, what=f"the token of {name} is refused")

    async def _refused(self, token: str) -> bool:
        url = f"https://127.0.0.1:{self.ground.layout.api_port}/version"
        context = ssl.create_default_context(cafile=str(self._authority.pair.certificate))
        headers = {"Authorization": f"Bearer {token}"}
        async with aiohttp.ClientSession() as session, session.get(url, headers=headers, ssl=context) as answer:
            return answer.status == 401

    @property
    def _authority(self) -> Authority:
        return Authority(self.ground.layout.pki)


async def serving(ground: Ground, operator: Operator) -> Story:
    """Create a service in the operator's namespace, and return its story when the service is Ready."""
    await until(operator.ready, timeout=60, what="the operator is ready")
    story = Story(ground.api, operator)
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": operator.namespace}}
    await ground.api.create("/api/v1/namespaces", namespace)
    await story._create()
    return story


async def grown(story: Story, replicas: int) -> None:
    """Ask for replicas, and wait until they are ready."""
    story.timeout = RECOVERY_SECONDS
    await story._edit(lambda spec: spec["scaling"].update(min=replicas))
    await story.until(f"{replicas} replicas", lambda v: v.status.get("replicas") == replicas)


async def test_a_token_that_is_replaced_in_time_is_never_missed(ground: Ground, tmp_path: Path) -> None:
    account = Account(ground, tmp_path / "replaced")
    first = await account.replace()
    async with Operator(ground.layout, ground.folder, "token-replaced", 18950, account=account.folder) as operator:
        story = await serving(ground, operator)
        old, process = account.token, operator.pid
        if EXPIRES:
            await asyncio.sleep(0.8 * MINUTES_10)  # when a kubelet replaces a token
        await account.replace()
        await account.end(first, old)
        operator.proxy.cut()  # the watches that the old token opened would go on
        await grown(story, 2)
        assert operator.proxy.refused > 0, "the old token was not used any more: nothing was tried"
        assert (operator.deaths, operator.pid) == (0, process)
        await story._delete()


async def test_without_a_token_nothing_changes_and_the_next_one_is_enough(ground: Ground, tmp_path: Path) -> None:
    account = Account(ground, tmp_path / "late")
    first = await account.replace()
    async with Operator(ground.layout, ground.folder, "token-late", 18951, account=account.folder) as operator:
        story = await serving(ground, operator)
        await account.end(first, account.token)
        operator.proxy.cut()
        written, refused = len(operator.proxy.committed), operator.proxy.refused
        await story._edit(lambda spec: spec["scaling"].update(min=2))

        async def tried() -> bool:
            return operator.proxy.refused > refused + 3

        await until(tried, timeout=RECOVERY_SECONDS, what="the operator tries again and again")
        assert operator.proxy.committed[written:] == []
        await account.replace()
        story.timeout = RECOVERY_SECONDS
        await story.until("2 replicas", lambda v: v.status.get("replicas") == 2)
        assert operator.deaths == 0
        assert "never retrieved" not in operator.log.read_text()
        await story._delete()
