"""Protects services on AWS Trainium and Inferentia: the example renders to what AWS documents for NeuronCores in Kubernetes (the
resource of its device plugin, as many ranks as cores, NEURON_RT_NUM_CORES, its image and taint), and devices, whose cores the
operator does not know, leave the ranks to engine.args."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from support.golden_manifests import child_of

from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

EXAMPLE = Path(__file__).parents[3] / "examples/trainium-chat.yaml"


def pod(spec: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], dict[str, str]]:
    """The pod's spec, its container, and the container's variables that have a value."""
    made: dict[str, Any] = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    (container,) = made["containers"]
    return made, container, {one["name"]: one["value"] for one in container["env"] if "value" in one}


def on(resource: str, runtime: str, count: int) -> dict[str, Any]:
    return {
        "model": {"source": "pvc://weights/m"},
        "engine": {"runtime": runtime},
        "resources": {"accelerator": {"name": resource, "count": count}},
    }


def test_the_example_is_what_aws_documents() -> None:
    made, container, variables = pod(yaml.safe_load(EXAMPLE.read_text())["spec"])
    assert container["resources"]["limits"]["aws.amazon.com/neuroncore"] == "8"
    assert container["resources"]["requests"]["aws.amazon.com/neuroncore"] == "8"
    assert variables["NEURON_RT_NUM_CORES"] == "8"
    assert "--tensor-parallel-size=8" in container["args"]
    assert container["image"].startswith("public.ecr.aws/neuron/pytorch-inference-vllm-neuronx:0.24.0.")
    assert container["command"] == ["python3", "-m", "vllm.entrypoints.openai.api_server"]
    assert {"key": "aws.amazon.com/neuron", "operator": "Exists", "effect": "NoSchedule"} in made["tolerations"]
    assert made["nodeSelector"] == {"node.kubernetes.io/instance-type": "trn2.48xlarge"}


def test_compiled_models_lie_where_the_pod_may_write() -> None:
    spec = yaml.safe_load(EXAMPLE.read_text())["spec"]
    _, container, variables = pod(spec)
    mounted = {mount["mountPath"] for mount in container["volumeMounts"] if not mount.get("readOnly")}
    assert variables["NEURON_COMPILE_CACHE_URL"].rpartition("/")[0] in mounted


@pytest.mark.parametrize("runtime", ["vllm", "tgi"])
def test_cores_of_whole_devices_are_not_guessed(runtime: str) -> None:
    _, container, variables = pod(on("aws.amazon.com/neuron", runtime, 4))
    assert container["resources"]["limits"]["aws.amazon.com/neuron"] == "4"
    assert "NEURON_RT_NUM_CORES" not in variables
    assert not [flag for flag in container["args"] if "parallel" in flag or "shard" in flag]


def test_tgi_is_told_its_cores_as_hugging_face_documents() -> None:
    _, container, variables = pod(on("aws.amazon.com/neuroncore", "tgi", 2))
    assert container["image"].endswith("-neuron")
    assert (variables["HF_NUM_CORES"], variables["NEURON_RT_NUM_CORES"]) == ("2", "2")


def test_other_accelerators_get_nothing_of_neuron() -> None:
    _, container, variables = pod(on("nvidia.com/gpu", "vllm", 2))
    assert not [name for name in variables if name.startswith("NEURON")]
    assert "command" not in container


def test_a_queue_that_this_vllm_cannot_bound_is_refused() -> None:
    spec = on("aws.amazon.com/neuroncore", "vllm", 2)
    spec["engine"]["limits"] = {"queued": 10}
    found = parse(spec)
    assert isinstance(found, SpecErrors)
    assert [error.field for error in found.errors] == ["spec.engine.limits.queued"]
