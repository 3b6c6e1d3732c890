"""Protects the one table of the kinds that the operator reads and writes: every manifest that a builder makes is of a kind in
the table, in its version, and a child exactly if it belongs to a revision."""

from __future__ import annotations

from support.golden_manifests import MADE, child_of, spec_of

from pagefleet_operator.kube.paths import CHILDREN, KINDS, WATCHED, WORKLOADS


def test_every_manifest_of_a_revision_is_of_a_child_kind_and_in_its_version() -> None:
    made = [build(child_of(spec_of(name))) for _, name, build in MADE]
    assert {manifest["kind"] for manifest in made} == {kind.name for kind in CHILDREN}
    for manifest in made:
        assert KINDS[manifest["kind"]].version == manifest["apiVersion"]


def test_workloads_are_applied_first_and_so_deleted_last() -> None:
    names = [kind.name for kind in CHILDREN]
    assert tuple(names[: len(WORKLOADS)]) == WORKLOADS == ("Deployment", "LeaderWorkerSet")


def test_kinds_that_a_cluster_may_lack_are_not_watched() -> None:
    watched = {"Deployment", "Service", "PodDisruptionBudget", "Pod", "ControllerRevision"}
    assert {kind.name for kind in WATCHED} == watched


def test_of_controller_revisions_only_records_are_watched() -> None:
    """StatefulSets of groups have some with our other labels, and the rest of the cluster has many."""
    assert KINDS["ControllerRevision"].selector == (
        "app.kubernetes.io/managed-by=pagefleet,app.kubernetes.io/name=pagefleet-revision-record"
    )


def test_a_resource_has_no_version_where_servers_differ() -> None:
    assert KINDS["Deployment"].resource == ("apps", "v1", "deployments")
    assert KINDS["Pod"].resource == ("", "v1", "pods")
    assert KINDS["PodDisruptionBudget"].resource == ("policy", "poddisruptionbudgets")
