"""Kubernetes' own CRD server, current and alone, with our CRD, and requests to it. No test here."""

from __future__ import annotations

import copy
import http.client
import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pagefleet_contract.names import GROUP, KIND, PLURAL, VERSION
from pagefleet_local.assets.crdserver import CrdServer
from pagefleet_local.base.certificates import Authority
from pagefleet_local.base.paths import Layout
from pagefleet_local.controlplane import crdserver, etcd
from pagefleet_operator.kube.client import APPLY_PATCH, JSON, MERGE_PATCH, ApiError

Document = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
CRD = f"{CRDS}/{PLURAL}.{GROUP}"
SERVICES = f"/apis/{GROUP}/{VERSION}/namespaces/team/{PLURAL}"
SERVED_SECONDS = 30


@dataclass(frozen=True)
class Answer:
    """`warnings` are what kubectl would print."""

    status: int
    body: Document
    warnings: list[str]

    @property
    def message(self) -> str:
        return str(self.body.get("message", ""))

    def done(self) -> Document:
        """Return the object. Raises ApiError for a refusal."""
        if self.status >= 300:
            raise ApiError(self.status, self.message)
        return self.body


class Requests:
    """One connection with the administrator's certificate. `request` sends one document and returns the answer."""

    def __init__(self, layout: Layout) -> None:
        context = ssl.create_default_context(cafile=str(layout.pki / "ca.crt"))
        context.load_cert_chain(layout.pki / "admin.crt", layout.pki / "admin.key")
        self._connection = http.client.HTTPSConnection("127.0.0.1", layout.api_port, timeout=30, context=context)

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None, kind: str = JSON) -> Answer:
        data = None if body is None else json.dumps(body)
        self._connection.request(method, path, data, {"Content-Type": kind, "Accept": JSON})
        response = self._connection.getresponse()
        text = response.read()
        body = json.loads(text) if response.headers.get_content_type() == JSON else {"message": text.decode()}
        return Answer(response.status, body, response.headers.get_all("Warning", []))

    def close(self) -> None:
        self._connection.close()

    def get(self, path: str) -> Document:
        return self.request("GET", path).done()

    def create(self, document: Mapping[str, Any], query: str = "") -> Answer:
        return self.request("POST", f"{SERVICES}?{query}", document)

    def tried(self, spec: Mapping[str, Any]) -> Answer:
        """Create an InferenceService of this spec as a dry run."""
        return self.create(service("tried", spec), "dryRun=All")

    def apply(self, name: str, manager: str, fields: Mapping[str, Any], *, force: bool = False) -> Answer:
        """Apply fields of an InferenceService on the server's side."""
        document = {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": {"name": name}, **fields}
        query = f"fieldManager={manager}&force={json.dumps(force)}"
        return self.request("PATCH", f"{SERVICES}/{name}?{query}", document, APPLY_PATCH)

    def merge(self, path: str, fields: Mapping[str, Any]) -> Answer:
        return self.request("PATCH", path, fields, MERGE_PATCH)

    def until(self, held: Callable[[], bool], what: str) -> None:
        """Wait until `held`. Raises TimeoutError."""
        end = time.monotonic() + SERVED_SECONDS
        while not held():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {SERVED_SECONDS} s: {what}")
            time.sleep(0.05)

    def install(self, definition: Mapping[str, Any]) -> Answer:
        """Create the CRD as strictly as kubectl does, and wait until its objects are served."""
        answer = self.request("POST", f"{CRDS}?fieldValidation=Strict", definition)
        if answer.status < 300:
            self.until(lambda: self.request("GET", SERVICES).status == 200, "our objects are served")
        return answer

    def change(self, definition: Mapping[str, Any], holds: Callable[[], bool], what: str) -> None:
        """Replace the CRD, and wait until the server goes by it."""
        changed = dict(copy.deepcopy(definition))
        changed["metadata"]["resourceVersion"] = self.get(CRD)["metadata"]["resourceVersion"]
        self.request("PUT", CRD, changed).done()
        self.until(holds, what)


def shipped() -> Document:
    definition: Document = yaml.safe_load((ROOT / "crds/inferenceservices.yaml").read_text())
    return definition


def service(name: str, spec: Mapping[str, Any]) -> Document:
    metadata = {"name": name, "namespace": "team"}
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": KIND, "metadata": metadata, "spec": spec}


@contextmanager
def running(program: CrdServer, folder: Path, emulated: str = "") -> Iterator[Requests]:
    """Run the server on an etcd of its own in `folder`, at free ports, without any CRD, as the version `emulated`."""
    with _free_port() as api, _free_port() as client:
        layout = Layout(state=folder, run=folder / "run", api_port=api, etcd_port=client)
    authority = Authority(layout.pki)
    authority.ensure()
    with ExitStack() as stack:
        stack.callback(etcd.start(layout, authority).stop)
        stack.callback(crdserver.start(layout, program, authority, emulated).stop)
        yield stack.enter_context(closing(Requests(layout)))


@contextmanager
def _free_port() -> Iterator[int]:
    """Yield a port that is free, as the next one is (etcd takes two)."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            if second.connect_ex(("127.0.0.1", port + 1)):
                yield port
                return
