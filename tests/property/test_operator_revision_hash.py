"""Protects the names of revisions: specs of one meaning are one revision however they are written, specs of two meanings are
two, an upgrade of the operator renames none, and an edit of the writing alone rolls nothing out."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from fractions import Fraction
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.golden_manifests import SPECS, child_of, spec_of
from support.virtual.cluster import Cluster

from pagefleet_contract.quantity import QUANTITY, amount, canonical
from pagefleet_operator.domain.base.revision import DEFAULTS, earlier_hashes, meaning, revision_hash, snapshot
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.prefill import prefill_deployment
from pagefleet_operator.domain.manifests.workload import workload
from pagefleet_operator.domain.rollout.target import target_of
from pagefleet_operator.domain.spec.parse import Spec, parse
from pagefleet_operator.domain.status.status import Rejection, RevisionRecord, Status

# A spec, and the name that its revision had before specs were compared by their meaning.
BEFORE = {"model": {"source": "hf://a/b"}, "resources": {"cpu": "3500m", "memory": "24Gi"}}, "cde825d4"
EMPTY: tuple[tuple[str, ...], ...] = (
    ("model", "adapters"), ("engine", "env"), ("engine", "args"), ("engine", "limits"), ("engine", "kvCache"),
    ("engine", "scheduling"), ("placement", "nodeSelector"), ("placement", "tolerations"),
    ("placement", "topologySpreadConstraints"), ("resources", "hugePages"),
    ("pod", "resourceClaims"),
)  # fmt: skip
LISTS = {"adapters", "env", "args", "tolerations", "topologySpreadConstraints", "resourceClaims"}
DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}


def value_of(text: str) -> int:
    """A quantity's value in billionths, rounded up: Kubernetes' rule, written independently of the code under test."""
    digits = text.rstrip("numkKMGTPEi") if text[-1] not in "0123456789." else text
    suffix = text[len(digits) :]
    number, _, exponent = digits.lower().partition("e")
    scale = (
        Fraction(1024) ** BINARY[suffix] if suffix in BINARY else Fraction(10) ** (DECIMAL[suffix] + int(exponent or 0))
    )
    return math.ceil(Fraction(number) * scale * 10**9)


NUMBERS = st.integers(0, 5000).map(str) | st.decimals(0, 3000, places=3).map(str)
WRITTEN = st.builds(str.__add__, NUMBERS, st.sampled_from([*DECIMAL, *BINARY])) | st.builds(
    "{}{}{}".format, NUMBERS, st.sampled_from("eE"), st.integers(-12, 18)
)


@given(one=WRITTEN, other=WRITTEN)
@settings(max_examples=500)
def test_quantities_are_written_alike_exactly_if_they_are_equal(one: str, other: str) -> None:
    assert (canonical(one) == canonical(other)) == (value_of(one) == value_of(other))
    assert canonical(canonical(one)) == canonical(one)
    assert value_of(canonical(one)) == value_of(one)


@pytest.mark.parametrize(
    "same",
    [
        ("1", "1000m", "1.0", "1e0", "1000000u", "0.001k"),
        ("500m", "0.5", ".5", "5e-1", "500000u"),
        ("1Gi", "1024Mi", "1048576Ki", "1073741824"),
        ("4G", "4000M", "4e9", "4E9", "4000000000"),
        ("1536Mi", "1.5Gi"),
        ("0", "0m", "0Gi", "0.0"),
        ("1n", "0.1n", "1e-12"),
    ],
)
def test_each_value_has_one_text(same: tuple[str, ...]) -> None:
    assert {canonical(text) for text in same} == {same[0]}


@pytest.mark.parametrize("text", ["", "1 Gi", "one", "1e", "1e999", "-1", "1KiB", "Gi"])
def test_what_is_no_quantity_stays(text: str) -> None:
    assert canonical(text) == text


@given(memory=st.from_regex(QUANTITY, fullmatch=True))
def test_a_quantity_of_the_schema_keeps_its_amount(memory: str) -> None:
    given_amount = amount(memory)
    assert value_of(canonical(memory)) == pytest.approx(given_amount * 1e9, rel=1e-12, abs=1)


def named(spec: Any) -> str:
    return revision_hash(filled(spec))


def filled(spec: Any) -> dict[str, Any]:
    parsed = parse(spec)
    assert isinstance(parsed, Spec), parsed
    return dict(parsed.raw)


def written_by_earlier_operators(spec: Any) -> str:
    text = json.dumps(snapshot(filled(spec)), sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:8]


def without(spec: Any, path: tuple[str, ...]) -> dict[str, Any]:
    bare: dict[str, Any] = copy.deepcopy(dict(spec))
    place = bare
    for name in path[:-1]:
        place = place.get(name, {})
    place.pop(path[-1], None)
    return bare


def put(spec: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(spec)
    place = changed
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    return changed


@pytest.mark.parametrize("name", SPECS)
def test_a_spec_that_is_written_as_its_meaning_has_its_name_of_before(name: str) -> None:
    spec = spec_of(name)
    before = written_by_earlier_operators(spec)
    assert target_of(filled(spec), Status(stable=before)) == before
    for path, _ in DEFAULTS if name == "full" else ():  # which writes defaults out
        spec = without(spec, path) if path != ("model", "oci") else spec
    assert meaning(filled(spec)) == snapshot(filled(spec))
    assert named(spec) == written_by_earlier_operators(spec)
    assert named(BEFORE[0]) == BEFORE[1]


@pytest.mark.parametrize("path", EMPTY, ids=".".join)
@pytest.mark.parametrize("name", ["minimal", "gpu"])
def test_an_empty_list_or_map_is_absent(name: str, path: tuple[str, ...]) -> None:
    bare = put(spec_of(name), path, None)
    place = bare
    for part in path[:-1]:
        place = place[part]
    del place[path[-1]]
    empty = put(bare, path, [] if path[-1] in LISTS else {})
    assert named(empty) == named(bare)
    assert deployment(replace(child_of(empty), revision="r"), 1) == deployment(replace(child_of(bare), revision="r"), 1)


@pytest.mark.parametrize(
    ("path", "default"), DEFAULTS, ids=lambda part: ".".join(part) if isinstance(part, tuple) else ""
)
@pytest.mark.parametrize("name", SPECS)
def test_a_default_that_is_written_out_is_what_leaving_it_out_is(
    name: str, path: tuple[str, ...], default: Any
) -> None:
    """`nodes: 1` in a manifest that was put in order replaced every pod of the service."""
    bare = without(spec_of(name), path)
    written = put(bare, path, default)
    if not (isinstance(parse(bare), Spec) and isinstance(parse(written), Spec)):
        return  # this engine does not take the field
    assert named(written) == named(bare)
    pods = [workload(replace(child_of(spec), revision="r"), 1, served=True) for spec in (written, bare)]
    assert pods[0] == pods[1]
    prefill = [
        prefill_deployment(replace(child_of(spec), revision="r"), 1)
        for spec in (written, bare)
        if path[1] == "disaggregation"
    ]
    assert all(one == prefill[0] for one in prefill)


def test_a_default_of_another_kind_or_value_counts() -> None:
    for name, path, value in (("vllm", ("engine", "nodes"), 2), ("gpu", ("engine", "kvCache", "events"), True)):
        assert named(put(spec_of(name), path, value)) != named(without(spec_of(name), path)), path
    assert meaning({"engine": {"nodes": True}}) == {"engine": {"nodes": True}}, "an invalid spec is compared, too"
    assert meaning({"engine": "x", "model": None}) == {"engine": "x", "model": None}


def test_an_upgrade_renames_no_revision_whose_defaults_are_written_out() -> None:
    for loose in (
        put(spec_of("minimal"), ("engine", "nodes"), 1),
        put(put(spec_of("minimal"), ("engine", "nodes"), 1), ("engine", "env"), []),
    ):
        before, written = earlier_hashes(filled(loose))[1], written_by_earlier_operators(loose)
        assert named(loose) not in (before, written)
        for name in (before, written):
            assert target_of(filled(loose), status_with(name, loose)) == name
            assert target_of(filled(loose), Status(stable=name)) == name, "its record could not be read"
            rejected = (Rejection(name, "Aborted", "", 1.0),)
            assert target_of(filled(loose), Status(stable="aaaaaaaa", rejected=rejected)) == name
        history = (RevisionRecord(before, 1.0), *status_with("s", loose).revisions)
        assert target_of(filled(loose), Status(stable="s", revisions=history)) in ("s", written)


def test_another_value_is_another_revision() -> None:
    spec = spec_of("minimal")
    base = named(spec)
    for path, value in (
        (("resources", "cpu"), "1001m"), (("resources", "memory"), "4097Mi"), (("engine", "args"), ["--kernels=auto"]),
        (("placement", "topologySpread"), False), (("engine", "kvCache"), {"prefixCaching": False}),
    ):  # fmt: skip
        assert named(put(spec, path, value)) != base, path


def status_with(stable: str, spec: Any, **more: Any) -> Status:
    return Status(stable=stable, revisions=(RevisionRecord(stable, 1.0, snapshot(filled(spec))),), **more)


def test_an_upgrade_of_the_operator_renames_no_revision() -> None:
    loose = put(put(spec_of("minimal"), ("resources", "cpu"), "1000m"), ("engine", "env"), [])
    before = written_by_earlier_operators(loose)
    assert before != named(loose)
    assert target_of(filled(loose), status_with(before, loose)) == before
    assert target_of(filled(loose), Status(stable=before)) == before, "its record could not be read"
    rejected = (Rejection(before, "Aborted", "", 1.0),)
    assert target_of(filled(loose), Status(stable="aaaaaaaa", rejected=rejected)) == before


def test_of_several_revisions_with_the_meaning_it_is_the_stable_one() -> None:
    spec = spec_of("minimal")
    made = snapshot(filled(put(spec, ("resources", "cpu"), "1000m")))
    records = tuple(RevisionRecord(name, created, made) for created, name in enumerate(("a", "b", "c")))
    sought = filled(put(spec, ("resources", "cpu"), "1.0"))
    assert target_of(sought, Status(stable="a", canary="b", revisions=records)) == "a"
    assert target_of(sought, Status(stable="x", canary="b", revisions=records)) == "b"
    assert target_of(sought, Status(stable="x", revisions=records)) == "c"


def test_an_edit_of_the_writing_rolls_nothing_out() -> None:
    cluster = Cluster(1)
    resources = ("resources", "memory")
    cluster.spec = put(cluster.spec, resources, "2Gi")
    cluster.until(lambda status: bool(status.traffic))
    stable, children = cluster.status.stable, cluster.plan and cluster.plan.children
    edits: tuple[tuple[tuple[str, ...], Any], ...] = (
        (resources, "2048Mi"),
        (("engine", "env"), []),
        (("placement", "nodeSelector"), {}),
        (("engine", "nodes"), 1),
    )
    for path, value in edits:
        cluster.spec = put(cluster.spec, path, value)
        cluster.generation += 1
        cluster.tick()
        assert (cluster.status.stable, cluster.status.canary) == (stable, "")
        assert cluster.plan and cluster.plan.children == children, "pods stay as they were built"
    cluster.spec = put(cluster.spec, resources, "3Gi")
    cluster.generation += 1
    cluster.tick()
    assert cluster.status.canary not in ("", stable)
