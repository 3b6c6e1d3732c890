"""What a revision's pods mount: /tmp of their own, the cache of fetched weights, shared memory, huge pages; read-only the
claims and images of model URIs, a chat template, API keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pagefleet_contract.names import API_KEYS_VOLUME
from pagefleet_operator.domain.base.revision_spec import RevisionSpec
from pagefleet_operator.domain.runtimes.uris import claims, image_path, images, mount_path

GROUP_READS = 0o440
CACHE, CACHE_FOLDER = "model-cache", "/var/cache/pagefleet"


@dataclass(frozen=True)
class File:
    """One file in a folder of its own: a mounted folder follows its ConfigMap or Secret, a mounted file does not."""

    volume: str
    folder: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.folder}/{self.name}"


CHAT_TEMPLATE = File("chat-template", "/etc/pagefleet/chat-template", "template.jinja")
API_KEYS = File(API_KEYS_VOLUME, "/etc/pagefleet/api-keys", "keys")


def volumes(spec: RevisionSpec) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The pod's volumes and the engine container's mounts."""
    defined: list[dict[str, Any]] = [{"name": "tmp", "emptyDir": {}}]
    mounts: list[dict[str, Any]] = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108 - a volume of the pod's own
    for number, claim in enumerate(claims(spec.model)):
        name = f"models-{number}"
        defined.append({"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}})
        mounts.append({"name": name, "mountPath": mount_path(claim), "readOnly": True})
    for number, reference in enumerate(images(spec.model)):
        name = f"model-image-{number}"
        defined.append({"name": name, "image": {"reference": reference, "pullPolicy": "IfNotPresent"}})
        mounts.append({"name": name, "mountPath": image_path(reference), "readOnly": True})
    if spec.model.cache_claim:
        defined.append({"name": CACHE, "persistentVolumeClaim": {"claimName": spec.model.cache_claim}})
        reads = {} if spec.engine.runtime == "custom" else {"readOnly": True}
        mounts.append({"name": CACHE, "mountPath": CACHE_FOLDER, **reads})
    template, keys = spec.model.chat_template, spec.engine.api_key
    if template:
        source = {"name": template.name, **_only(template.key, CHAT_TEMPLATE)}
        defined.append({"name": CHAT_TEMPLATE.volume, "configMap": source})
        mounts.append(_mount(CHAT_TEMPLATE))
    if keys and spec.is_ours:  # others take their key from a variable
        source = {"secretName": keys.name, "defaultMode": GROUP_READS, **_only(keys.key, API_KEYS)}
        defined.append({"name": API_KEYS.volume, "secret": source})
        mounts.append(_mount(API_KEYS))
    if shares_memory(spec):  # a container has 64 MiB of its own there
        limit = {"sizeLimit": spec.resources.shared_memory} if spec.resources.shared_memory else {}
        defined.append({"name": "shared-memory", "emptyDir": {"medium": "Memory", **limit}})
        mounts.append({"name": "shared-memory", "mountPath": "/dev/shm"})  # noqa: S108 - a volume of the pod's own
    for size in sorted(spec.resources.huge_pages):
        defined.append({"name": f"hugepages-{size.lower()}", "emptyDir": {"medium": f"HugePages-{size}"}})
        mounts.append({"name": f"hugepages-{size.lower()}", "mountPath": f"/hugepages-{size}"})
    return defined, mounts


def shares_memory(spec: RevisionSpec) -> bool:
    """Whether processes of a pod share buffers in /dev/shm: ours when they share a model, one for each GPU; others' engines
    always (vLLM's API and engine processes need 160 MiB there without any accelerator); any when a size is given."""
    return not spec.is_ours or spec.gpus > 1 or bool(spec.resources.shared_memory)


def _only(key: str, file: File) -> dict[str, Any]:
    return {"items": [{"key": key, "path": file.name}]}


def _mount(file: File) -> dict[str, Any]:
    return {"name": file.volume, "mountPath": file.folder, "readOnly": True}
