"""Names of the API, labels, annotations and ports on Kubernetes objects (docs/reference/contract/kubernetes-objects.md)."""

from __future__ import annotations

import re

GROUP, VERSION, KIND, PLURAL = "pagefleet.io", "v1alpha1", "InferenceService", "inferenceservices"
API_VERSION = f"{GROUP}/{VERSION}"

MANAGED_LABEL, MANAGED = "app.kubernetes.io/managed-by", "pagefleet"
MANAGED_SELECTOR = f"{MANAGED_LABEL}={MANAGED}"
NAME_LABEL = "app.kubernetes.io/name"
SERVICE_LABEL, REVISION_LABEL = "pagefleet.io/service", "pagefleet.io/revision"
SPARE_LABEL, AWAKE_GATE = "pagefleet.io/spare", "pagefleet.io/awake"  # of warm spares: label, readiness gate
# A pod that computes for another one of its group: it serves nobody, so no selector of a service's pods may match it.
WORKER_LABEL = "pagefleet.io/worker-of"
# A pod that computes prompts for the decode pods of its revision: requests come to it from those only, so no selector of a
# service's pods may match it either.
PREFILL_LABEL = "pagefleet.io/prefill-of"
LOAD_TEST_LABEL = "pagefleet.io/load-test"
ENGINE_POD_SELECTOR = f"{MANAGED_SELECTOR},{SERVICE_LABEL},{REVISION_LABEL}"
REVISION_POD_SELECTOR = f"{MANAGED_SELECTOR},{REVISION_LABEL}"  # prefill pods and workers of groups too

ACTION_ANNOTATION = "pagefleet.io/action"  # on an InferenceService: what a person asks for
ENGINE_ANNOTATION = "pagefleet.io/engine"  # on a pod: where its engine listens and what its metrics are called

# On a Deployment or LeaderWorkerSet: a digest of what the operator applied, and the pod templates in it.
APPLIED_ANNOTATION = "pagefleet.io/applied-hash"
TEMPLATES_ANNOTATION = "pagefleet.io/applied-templates"

# The record of a revision: a ControllerRevision, and its annotations. It outlives the InferenceService, so it has no owner.
RECORD = "pagefleet-revision-record"
RECORD_SELECTOR = f"{MANAGED_SELECTOR},{NAME_LABEL}={RECORD}"
RECORDED_FOR_ANNOTATION = "pagefleet.io/recorded-for"  # the uid of the InferenceService that it was written for
CREATED_ANNOTATION = "pagefleet.io/created"
ROLE_ANNOTATION, ROLE_SINCE_ANNOTATION = "pagefleet.io/role", "pagefleet.io/role-since"
REJECTED_ANNOTATION, REJECTED_AT_ANNOTATION = "pagefleet.io/rejected", "pagefleet.io/rejected-at"
REJECTED_MESSAGE_ANNOTATION = "pagefleet.io/rejected-message"
DELETED_ANNOTATION = "pagefleet.io/service-deleted"  # when its InferenceService was first missed
RECORDS_ANNOTATION = "pagefleet.io/records"  # on an exported InferenceService: the number of its records

SYSTEM_NAMESPACE = "pagefleet-system"
OPERATOR, GATEWAY, ENGINE = "pagefleet-operator", "pagefleet-gateway", "pagefleet-engine"
ENGINE_CONTAINER = "engine"  # in an engine pod
# Where an engine pod names the Secret of its API key: the volume with it in a pod of our engine, whose only item is the key's name, and the
# variable from it in pods of other engines.
API_KEYS_VOLUME, API_KEY_VARIABLES = "api-keys", ("PAGEFLEET_API_KEY", "VLLM_API_KEY", "API_KEY")
WORKER, LOAD_TEST, PREFILL = "pagefleet-engine-worker", "pagefleet-load-test", "pagefleet-engine-prefill"

ENGINE_PORT = 8000
SIDECAR_ENGINE_PORT = 8001  # of an engine behind a routing sidecar, which has the engine's port
KV_TRANSFER_PORT = 5600  # of engines that give their KV pages to others: vLLM's NIXL side channel
KV_EVENTS_PORT, KV_REPLAY_PORT = 5557, 5558  # of engines that publish KV events; vLLM's own
GATEWAY_PORT, GATEWAY_INTERNAL_PORT = 8080, 9002  # clients; /healthz, /readyz, /metrics, /windows, /held
OPERATOR_PORT = 8080

# How an engine is put to sleep and woken. The routes are vLLM's (POST, POST, GET); level 1 gives the KV pages back and keeps the weights.
SLEEP_PATH, WAKE_PATH, IS_SLEEPING_PATH = "/sleep", "/wake_up", "/is_sleeping"
SLEEP_LEVEL = "1"

# What the API server takes as the name of an object (a DNS subdomain) and of a namespace (a DNS label): RFC 1123.
OBJECT_NAME = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
MAX_OBJECT_NAME, MAX_NAMESPACE = 253, 63
_OBJECT_NAME = re.compile(OBJECT_NAME)


def is_object_name(text: str) -> bool:
    """Whether `text` can be an object's name, and so one segment of an API path."""
    return len(text) <= MAX_OBJECT_NAME and _OBJECT_NAME.fullmatch(text) is not None


def is_namespace(text: str) -> bool:
    """Whether `text` can be a namespace's name."""
    return len(text) <= MAX_NAMESPACE and "." not in text and is_object_name(text)
