"""Protects the order of an engine's variables: $(NAME) stands for a variable that comes before."""

from __future__ import annotations

from typing import Any

import pytest
from support.golden_manifests import child_of

from pagefleet_operator.domain.manifests.deployment import deployment

ENV = [{"name": "ROOT", "value": "/data"}, {"name": "HF_HOME", "value": "$(ROOT)/hub"}]


@pytest.mark.parametrize("source", ["pvc://w/m", "hf://org/name"])
def test_variables_of_the_spec_keep_their_order_where_they_replace_one_of_ours(source: str) -> None:
    """The kubelet leaves $(ROOT) as it stands where ROOT comes later."""
    spec: dict[str, Any] = {"model": {"source": source}, "engine": {"runtime": "vllm", "env": ENV}}
    pod = deployment(child_of(spec), 1)["spec"]["template"]["spec"]
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        names = [entry["name"] for entry in container["env"]]
        assert len(names) == len(set(names))
        assert names.index("ROOT") < names.index("HF_HOME"), container["name"]
