"""Names of artifacts in registries, and the mirrors that a registry has."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

SCHEME = "oci://"
HUB, HUB_ADDRESS = "docker.io", "registry-1.docker.io"
LOCAL = ("localhost", "127.0.0.1")  # registries that are asked without TLS
URI = re.compile(r"oci://([a-z0-9][-A-Za-z0-9._:/]*)@sha256:([0-9a-f]{64})(?:/(.*))?", re.DOTALL)
HOST = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?(:[0-9]{1,5})?")
REPOSITORY = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
)  # of the distribution specification


@dataclass(frozen=True)
class Reference:
    """`digest` is hexadecimal (SHA-256). `path` is the model's folder in the artifact, with a slash at its end, or ""."""

    registry: str
    repository: str
    digest: str
    path: str

    @property
    def base(self) -> str:
        """The address of the repository in the registry's interface."""
        scheme = "http" if self.registry.rpartition(":")[0] in LOCAL or self.registry in LOCAL else "https"
        host = HUB_ADDRESS if self.registry == HUB else self.registry
        return f"{scheme}://{host}/v2/{self.repository}"


def parse(uri: str) -> Reference:
    """The parts of an oci:// URI, as container runtimes read them: a name without a registry is Docker's, and a tag beside the digest has no
    meaning. Raises ValueError."""
    found = URI.fullmatch(uri)
    if not found:
        raise ValueError(f"{uri} must be oci://registry/name@sha256:DIGEST[/path]")
    first, _, rest = found[1].partition("/")
    named = rest and ("." in first or ":" in first or first == "localhost")
    registry, name = (first, rest) if named else (HUB, found[1] if rest else f"library/{first}")
    folder, _, last = name.rpartition("/")
    repository = f"{folder}/{last.partition(':')[0]}".lstrip("/")
    path = (found[3] or "").strip("/")
    if not HOST.fullmatch(registry) or not REPOSITORY.fullmatch(repository):
        raise ValueError(f"{uri} names no repository of a registry")
    if {"..", ".", ""} & set(path.split("/")) and path:
        raise ValueError(f"{uri}: {path!r} is no path in an artifact")
    return Reference(registry, repository, found[2], f"{path}/" if path else "")


def mirrored(reference: Reference, mirrors: str) -> Iterator[Reference]:
    """Where the artifact is asked for, in this order: the mirrors of its registry in `mirrors` (REGISTRY=HOST[/PREFIX], separated by commas), then
    the registry itself. Raises ValueError."""
    for entry in filter(None, (one.strip() for one in mirrors.split(","))):
        registry, _, mirror = entry.partition("=")
        host, _, prefix = mirror.strip().strip("/").partition("/")
        if not HOST.fullmatch(registry.strip()) or not HOST.fullmatch(host):
            raise ValueError(f"{entry!r} must be REGISTRY=HOST[/PREFIX]")
        if registry.strip() == reference.registry:
            repository = f"{prefix}/{reference.repository}" if prefix else reference.repository
            yield Reference(host, repository, reference.digest, reference.path)
    yield reference
