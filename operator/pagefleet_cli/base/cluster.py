"""Reads InferenceServices and writes one annotation: a person's action. Never touches a spec or a status.

`kubernetes` is imported on use: `pagefleet plan` and `--help` need no cluster and should not wait for it.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pagefleet_cli.base.errors import CommandError, api_error, unknown_service, unreachable
from pagefleet_contract.names import GROUP, PLURAL, RECORD_SELECTOR, SERVICE_LABEL, VERSION

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

TIMEOUT_SECONDS = 15.0
RECORDS = "controllerrevisions"
Document = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """The cluster and namespace that the command line names. None: those of the kubeconfig."""

    namespace: str | None = None
    kubeconfig: Path | None = None
    context: str | None = None


class Cluster:
    """One API server through a kubeconfig. Every method raises CommandError."""

    def __init__(self, target: Target, timeout: float = TIMEOUT_SECONDS) -> None:
        import yaml
        from kubernetes import client, config
        from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION, KubeConfigLoader, KubeConfigMerger

        path = str(target.kubeconfig) if target.kubeconfig else None
        if target.kubeconfig and not target.kubeconfig.is_file():
            raise CommandError(f"--kubeconfig: there is no file {target.kubeconfig}")
        try:
            merged = KubeConfigMerger(path or KUBE_CONFIG_DEFAULT_LOCATION).config
            if merged is None:
                raise config.ConfigException(f"there is no file {path or KUBE_CONFIG_DEFAULT_LOCATION}")
            if target.context is not None:
                self._check(merged.value["contexts"], target.context)
            # A context that is named needs no current-context in the file.
            loader = KubeConfigLoader(merged, active_context=target.context, config_base_path=None)
            chosen = dict(loader.current_context["context"])
            settings = client.Configuration()
            config.load_kube_config(path, context=target.context, client_configuration=settings)
        except (config.ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, AttributeError) as error:
            raise CommandError(
                f"the kubeconfig cannot be used: {error} (give --kubeconfig, or set KUBECONFIG or ~/.kube/config)"
            ) from error
        settings.retries = False
        self.namespace: str = target.namespace or chosen.get("namespace") or "default"
        self.user = f"{_login()} ({chosen.get('user', 'unknown')})"
        self._host, self._timeout = str(settings.host), timeout
        self._client: ApiClient = client.ApiClient(settings)
        self._objects = client.CustomObjectsApi(self._client)

    @staticmethod
    def _check(contexts: list[Document], name: str) -> None:
        known = [str(entry["name"]) for entry in contexts]
        if name not in known:
            raise CommandError(f"--context: the kubeconfig has no {name!r}; it has {', '.join(known)}")

    def service(self, name: str) -> Document:
        """One InferenceService of the namespace; raises a CommandError that suggests similar names when it does not exist."""
        arguments = (GROUP, VERSION, self.namespace, PLURAL, name)
        try:
            return self._ask(name, self._objects.get_namespaced_custom_object, *arguments)
        except CommandError as error:
            if not str(error).endswith(": not found"):
                raise
            raise unknown_service(name, self.namespace, self._known()) from error

    def services(self, every: bool = False) -> Document:
        """List the services of the namespace, or of all namespaces."""
        if every:
            return self._ask(PLURAL, self._objects.list_cluster_custom_object, GROUP, VERSION, PLURAL)
        return self._ask(PLURAL, self._objects.list_namespaced_custom_object, GROUP, VERSION, self.namespace, PLURAL)

    def records(self, service: str = "", every: bool = False) -> list[Document]:
        """List the records of the namespace's revisions, or of one service's, or of all namespaces."""
        selector = f"{RECORD_SELECTOR},{SERVICE_LABEL}={service}" if service else RECORD_SELECTOR
        version = ("apps", "v1")
        if every:
            listed = self._ask(
                RECORDS, self._objects.list_cluster_custom_object, *version, RECORDS, label_selector=selector
            )
        else:
            call = self._objects.list_namespaced_custom_object
            listed = self._ask(RECORDS, call, *version, self.namespace, RECORDS, label_selector=selector)
        return list(listed.get("items") or ())

    def annotate(self, name: str, key: str, value: str) -> Document:
        """Set one annotation by a JSON merge patch."""
        body = {"metadata": {"annotations": {key: value}}}
        patch = self._objects.patch_namespaced_custom_object
        arguments = (GROUP, VERSION, self.namespace, PLURAL, name, body)
        return self._ask(name, patch, *arguments, _content_type="application/merge-patch+json")

    def gateway(self, namespace: str, name: str) -> Document:
        """The gateway's Service."""
        from kubernetes import client

        read = client.CoreV1Api(self._client).read_namespaced_service
        service = self._ask(f"Service {namespace}/{name}", read, name, namespace)
        document: Document = self._client.sanitize_for_serialization(service)
        return document

    def _known(self) -> list[tuple[str, str]]:
        try:
            items = self.services(every=True)["items"]
        except CommandError:
            items = self.services()["items"]  # a person may read one namespace only
        return [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in items]

    def _ask(self, name: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> Document:
        from kubernetes import client
        from urllib3.exceptions import HTTPError

        try:
            answer: Document = call(*arguments, _request_timeout=self._timeout, **options)
        except client.ApiException as error:
            if not error.status:
                raise unreachable(self._host, error) from error
            body = error.body.decode(errors="replace") if isinstance(error.body, bytes) else str(error.body or "")
            raise api_error(int(error.status), str(error.reason), body, name) from error
        except (HTTPError, OSError) as error:
            raise unreachable(self._host, error) from error
        return answer


def _login() -> str:
    """The person at this machine; a container's user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
