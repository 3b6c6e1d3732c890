"""Protects the manifests of a revision's children: tests/golden holds them word for word (see its README for how to
write them anew), and every pod passes Pod Security `restricted`."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from support.golden_manifests import (
    FOLDER,
    GROUPED,
    MADE,
    PREFILL,
    SEVERAL,
    SLEEPER,
    SPARE,
    SPECS,
    SPLIT,
    child_of,
    spec_of,
    violations,
)

from pagefleet_contract.disaggregation import SIDECAR
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.base.revision import POD_AFFECTING
from pagefleet_operator.domain.base.revision_spec import revision_spec
from pagefleet_operator.domain.manifests import deployment as module
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.model_fetch import PULL_SECRETS
from pagefleet_operator.domain.runtimes.volumes import CACHE, CACHE_FOLDER, shares_memory
from pagefleet_operator.domain.spec.schema.custom_runtime import CUSTOM
from pagefleet_operator.domain.spec.schema.spec import SPEC


class Plain(yaml.SafeDumper):
    """Writes a part of a manifest that occurs twice in full each time."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@pytest.fixture(autouse=True)
def release(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "release", lambda: "1.2.3")


def pod_of(spec: object) -> dict[str, Any]:
    pod: dict[str, Any] = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize(("kind", "name", "build"), MADE)
def test_a_manifest_is_the_golden_one(kind: str, name: str, build: Callable[[Child], dict[str, Any]]) -> None:
    made = yaml.dump(build(child_of(spec_of(name))), Dumper=Plain, sort_keys=False, width=110)
    golden = FOLDER / f"{kind}-{name}.yaml"
    if os.environ.get("PAGEFLEET_GOLDEN") == "write":
        golden.write_text(made)
    assert golden.read_text() == made, "if this is meant: see tests/golden/README.md"


def test_no_golden_file_is_left_over() -> None:
    made = {f"{kind}-{name}.yaml" for kind, name, _ in MADE}
    specs = {f"{name}.yaml" for name in (*SPECS, *SEVERAL)}
    assert {path.name for path in FOLDER.iterdir()} == made | {"README.md"} | specs


def test_the_full_spec_has_every_field_that_pods_are_made_of() -> None:
    """What only runtime custom takes is in its own spec, and so is what our engine lacks."""

    def absent(part: dict[str, Any], described: dict[str, Any], path: str) -> list[str]:
        if "properties" not in described:
            return []
        missing = [f"{path}.{name}" for name in described["properties"] if name not in part]
        for name, sub in described["properties"].items():
            if isinstance(part.get(name), dict):
                missing += absent(part[name], sub, f"{path}.{name}")
        return missing

    full, custom = spec_of("full"), spec_of("custom")
    full["engine"] |= {name: custom["engine"][name] for name in CUSTOM if name != "metrics"}
    full["engine"]["metrics"] = dict.fromkeys(CUSTOM["metrics"]["properties"], "x")
    full["engine"]["disaggregation"] = spec_of(SPLIT)["engine"]["disaggregation"]
    for name in POD_AFFECTING:
        assert absent(full[name], SPEC["properties"][name], name) == []


def pods() -> list[Any]:
    """Return every pod of the golden specs, and whether processes of it share memory."""
    groups = [
        GROUPED["leader-worker-set"](child_of(spec_of(name)))["spec"]["leaderWorkerTemplate"][f"{role}Template"]["spec"]
        for name in SEVERAL
        for role in ("leader", "worker")
    ]
    shared = [shares_memory(revision_spec(spec_of(name))) for name in SPECS]
    prefill = PREFILL["prefill-deployment"](child_of(spec_of(SPLIT)))["spec"]["template"]["spec"]
    spare = SPARE["spare-deployment"](child_of(spec_of(SLEEPER)))["spec"]["template"]["spec"]
    groups += [prefill, spare]
    return [*zip((pod_of(spec_of(name)) for name in SPECS), shared, strict=True), *((pod, True) for pod in groups)]


@pytest.mark.parametrize(("pod", "shared"), pods())
def test_pods_are_restricted_and_write_to_tmp_only(pod: dict[str, Any], shared: bool) -> None:
    """Those of several processes that share memory write to that too, those with huge pages to these. Only what fetches weights writes to their cache."""
    assert list(violations(pod)) == []
    container, *beside = pod["containers"]
    assert [one["name"] for one in beside] in ([], [SIDECAR])
    for one in beside:
        assert one["securityContext"]["readOnlyRootFilesystem"] is True and "volumeMounts" not in one
    assert pod["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    writable = [mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")]
    fetching = pod.get("initContainers", [])
    cache = [CACHE_FOLDER] if any(volume["name"] == CACHE for volume in pod["volumes"]) else []
    for one in fetching:
        assert one["securityContext"]["readOnlyRootFilesystem"] is True
        secrets = [mount["name"] for mount in one["volumeMounts"] if mount.get("readOnly")]
        assert secrets in ([], [PULL_SECRETS])
        assert [mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")] == ["/tmp", *cache]
    media = [volume.get("emptyDir", {}).get("medium", "") for volume in pod["volumes"]]
    huge = [f"/hugepages-{medium.removeprefix('HugePages-')}" for medium in media if medium.startswith("HugePages-")]
    assert writable == ["/tmp", *([] if fetching else cache), *(["/dev/shm"] if shared else []), *huge]
    mounted = {mount["name"] for one in (container, *fetching) for mount in one["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["volumes"]}
    assert PULL_SECRETS not in {mount["name"] for mount in container["volumeMounts"]}
    assert len({volume["name"] for volume in pod["volumes"]}) == len(pod["volumes"])


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("hostNetwork",), True),
        (("volumes", 0), {"name": "tmp", "hostPath": {"path": "/"}}),
        (("securityContext", "seccompProfile", "type"), "Unconfined"),
        (("containers", 0, "securityContext", "privileged"), True),
        (("containers", 0, "securityContext", "allowPrivilegeEscalation"), True),
        (("containers", 0, "securityContext", "runAsNonRoot"), False),
        (("containers", 0, "securityContext", "runAsUser"), 0),
        (("containers", 0, "securityContext", "capabilities", "drop"), []),
        (("containers", 0, "ports", 0, "hostPort"), 80),
    ],
)
def test_the_check_sees_what_restricted_forbids(path: tuple[Any, ...], value: object) -> None:
    place: Any = (pod := copy.deepcopy(pod_of(spec_of("full"))))
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    assert list(violations(pod))


def test_a_claim_is_mounted_once_however_often_it_is_named() -> None:
    spec = spec_of("full")
    del spec["model"]["oci"]
    spec["model"]["adapters"] = [
        {"name": name, "source": f"pvc://{claim}/{name}"}
        for name, claim in (("a", "weights"), ("b", "tuned"), ("c", "tuned"))
    ]
    claims = [v["persistentVolumeClaim"]["claimName"] for v in pod_of(spec)["volumes"] if "persistentVolumeClaim" in v]
    assert claims == ["weights", "tuned", "fetched"]
