"""Who the operator is to the API server: the pod's service account, or any kind of kubeconfig.

The Kubernetes client library reads and authenticates (token, token file, exec plugin, OIDC, client certificate). kopf and
our own client are both given what it has read, so that the two never disagree.
"""

from __future__ import annotations

import kopf
from kubernetes.aio import client, config


async def load(kubeconfig: str | None) -> client.Configuration:
    """Read the kubeconfig file, or the pod's service account where there is none. An exec plugin runs each time.

    Raises kubernetes.aio.config.ConfigException.
    """
    settings = client.Configuration()
    if kubeconfig:
        await config.load_kube_config(kubeconfig, client_configuration=settings)
    else:
        config.load_incluster_config(client_configuration=settings)
    return settings


async def authorization(settings: client.Configuration) -> dict[str, str]:
    """The Authorization header; empty with a client certificate. A service account's token is read again every minute."""
    headers = {}
    for setting in (await settings.auth_settings()).values():
        if setting["value"]:
            headers["Authorization"] = str(setting["value"]).strip()
    return headers


async def for_kopf(kubeconfig: str | None) -> kopf.ConnectionInfo:
    """The same credentials as kopf takes them. kopf asks again when the API server answers 401."""
    settings = await load(kubeconfig)
    scheme, _, token = (await authorization(settings)).get("Authorization", "").partition(" ")
    return kopf.ConnectionInfo(
        server=settings.host,
        ca_path=settings.ssl_ca_cert,
        insecure=not settings.verify_ssl,
        scheme=scheme or None,
        token=token or None,
        certificate_path=settings.cert_file,
        private_key_path=settings.key_file,
        proxy_url=settings.proxy,
    )
