"""Protects every kind of kubeconfig against a real API server: a token, a token file, an exec plugin whose credentials
run out, a client certificate. Each must authenticate our own client, and kopf's connection the same way."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.cluster.plane import Plane

from pagefleet_local.base.certificates import Authority
from pagefleet_operator.kube import credentials
from pagefleet_operator.kube.client import Api, ApiError

pytestmark = [pytest.mark.cluster, pytest.mark.asyncio(loop_scope="session")]
NAMESPACE, ACCOUNT = "kube-public", "kubeconfig-reader"
PLUGIN = """
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
tokens = json.loads((folder / "tokens").read_text())
(folder / "tokens").write_text(json.dumps(tokens[1:] or tokens))
print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": tokens[0]}}))
"""


async def account_token(plane: Plane) -> str:
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT}}
    path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
    if await plane.api.find(f"{path}/{ACCOUNT}") is None:
        await plane.api.create(path, account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    made = await plane.api.create(f"{path}/{ACCOUNT}/token", request)
    return str(made["status"]["token"])


def kubeconfig(plane: Plane, folder: Path, user: dict[str, Any]) -> str:
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "own",
        "clusters": [{"name": "own", "cluster": {
            "server": f"https://127.0.0.1:{plane.layout.api_port}",
            "certificate-authority": str(Authority(plane.layout.pki).pair.certificate)}}],
        "users": [{"name": "own", "user": user}],
        "contexts": [{"name": "own", "context": {"cluster": "own", "user": "own"}}],
    }  # fmt: skip
    path = folder / "kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return str(path)


async def whoami(path: str) -> str:
    """Return the API server's refusal. It has the name by which the server knows the client."""
    async with Api(path) as api:
        with pytest.raises(ApiError) as refused:
            await api.get("/api/v1/namespaces/kube-system/secrets")
    assert refused.value.status == 403, refused.value
    return refused.value.message


def plugin(folder: Path, *tokens: str) -> dict[str, Any]:
    """Return the user entry of an exec plugin that prints one token after the other, and the last one again and again."""
    (folder / "tokens").write_text(json.dumps(tokens))
    (folder / "plugin.py").write_text(PLUGIN)
    arguments = [str(folder / "plugin.py"), str(folder)]
    version = "client.authentication.k8s.io/v1"
    return {"exec": {"apiVersion": version, "command": sys.executable, "args": arguments, "interactiveMode": "Never"}}


async def test_a_token_and_a_token_file(plane: Plane, tmp_path: Path) -> None:
    token = await account_token(plane)
    (tmp_path / "token").write_text(token + "\n")
    for user in ({"token": token}, {"tokenFile": str(tmp_path / "token")}):
        path = kubeconfig(plane, tmp_path, user)
        assert ACCOUNT in await whoami(path)
        assert (await credentials.for_kopf(path)).as_http_headers() == {"Authorization": f"Bearer {token}"}


async def test_an_exec_plugin_is_asked_again_when_its_credentials_have_run_out(plane: Plane, tmp_path: Path) -> None:
    """The first token is refused with 401, as an expired one is; the request is sent once more with the next one."""
    path = kubeconfig(plane, tmp_path, plugin(tmp_path, "expired", await account_token(plane)))
    assert ACCOUNT in await whoami(path)


async def test_credentials_that_stay_refused_are_reported(plane: Plane, tmp_path: Path) -> None:
    async with Api(kubeconfig(plane, tmp_path, plugin(tmp_path, "wrong"))) as api:
        with pytest.raises(ApiError) as refused:
            await api.get("/api/v1/namespaces/kube-system/secrets")
    assert refused.value.status == 401


async def test_a_client_certificate(plane: Plane, tmp_path: Path) -> None:
    pair = Authority(plane.layout.pki).issue("kubeconfig-reader", "certificate-reader")
    user = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
    path = kubeconfig(plane, tmp_path, user)
    assert "certificate-reader" in await whoami(path)
    info = await credentials.for_kopf(path)
    assert (info.certificate_path, info.private_key_path) == (str(pair.certificate), str(pair.key))
