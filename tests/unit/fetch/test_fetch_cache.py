"""Protects the cache of fetched models: its size holds, the models that were not used for longest give way, and never one that somebody
fetches or starts with."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.golden_manifests import child_of, spec_of

from pagefleet_fetch import cache
from pagefleet_fetch.cache import Cache, Kept, leaving
from pagefleet_fetch.files import Fault, Interrupted, Model, RemoteFile
from pagefleet_fetch.main import fetched
from pagefleet_fetch.progress import Meter
from pagefleet_operator.domain.base.revision import revision_hash
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.spec.parse import SpecErrors, parse

GB = 1_000_000_000


def kept(**sizes: tuple[int, float]) -> list[Kept]:
    return [Kept(Path(name), size, used) for name, (size, used) in sizes.items()]


@pytest.mark.parametrize(
    ("needed", "size", "names"),
    [
        (10, 100, ""),
        (41, 100, "b"),
        (40, 100, ""),
        (61, 100, "bc"),
        (100, 100, "bca"),
        (200, 100, "bca"),
        (0, 30, "bc"),
    ],
)
def test_the_models_that_were_not_used_for_longest_give_way_and_no_more_than_needed(
    needed: int, size: int, names: str
) -> None:
    have = kept(a=(20, 9.0), b=(20, 1.0), c=(20, 5.0))
    assert "".join(str(one.folder) for one in leaving(have, needed, size)) == names


@pytest.fixture
def models(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def model(size: int, version: str = "v1") -> Model:
    return Model(version, (RemoteFile("m.safetensors", size),))


def bring(models: Cache, name: str, size: int, limit: int | None, used: float, version: str = "v1") -> Path:
    """A complete version that was used at that time."""
    folder, place = models.folder(f"hub/{name}", version), f"hub/{name}"
    with models.locked(place):
        models.plan(folder, model(size, version), limit)
        (folder / "m.safetensors").write_bytes(b"")
        models.keep(folder, f"hf://{name}", model(size, version))
    os.utime(folder / cache.COMPLETE, (used, used))
    return folder


def there(models: Cache) -> list[str]:
    return sorted(str(one.folder.relative_to(models.root / "hub")) for one in models.kept())


def test_a_cache_keeps_its_size(models: Cache) -> None:
    for number, name in enumerate("abcd"):
        bring(models, name, 40, 100, number)
    assert there(models) == ["c/v1", "d/v1"]
    cache.touch(models.folder("hub/c", "v1"))  # a pod starts with it
    bring(models, "e", 40, 100, 9)
    assert there(models) == ["c/v1", "e/v1"]
    assert not models.folder("hub/d", "v1").exists()


def test_without_a_size_nothing_gives_way(models: Cache) -> None:
    for number, name in enumerate("abcd"):
        bring(models, name, 40 * GB, None, number)
    assert len(there(models)) == 4


def test_another_version_of_the_same_model_gives_way_too(models: Cache) -> None:
    bring(models, "a", 60, 100, 1, "v1")
    bring(models, "a", 60, 100, 2, "v2")
    assert there(models) == ["a/v2"]


@contextmanager
def busy(models: Cache, name: str) -> Iterator[None]:
    """Another pod fetches the model."""
    path = models.root / cache.LOCKS / f"hub--{name}.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_model_that_somebody_fetches_stays(models: Cache) -> None:
    bring(models, "a", 40, 100, 1)
    bring(models, "b", 40, 100, 2)
    with busy(models, "a"):
        bring(models, "c", 40, 100, 3)
    assert there(models) == ["a/v1", "c/v1"]


def test_an_unfinished_model_counts_with_its_whole_size(models: Cache) -> None:
    bring(models, "a", 40, 100, 1)
    folder = models.folder("hub/b", "v1")
    models.plan(folder, model(50), 100)
    assert there(models) == ["a/v1", "b/v1"]
    with busy(models, "b"):
        bring(models, "c", 30, 100, 2)
    assert there(models) == ["b/v1", "c/v1"]


def test_a_model_that_is_larger_than_the_cache_is_the_spec_s_fault(models: Cache) -> None:
    bring(models, "a", 40, 100, 1)
    with pytest.raises(Fault) as refused:
        bring(models, "b", 101 * GB, 100 * GB, 2)
    assert (refused.value.field, refused.value.message) == (
        "spec.model.cache.size", "the model has 101.0 GB, and the cache may have 100.0 GB",
    )  # fmt: skip
    assert there(models) == ["a/v1"]


def test_a_volume_without_room_is_told_before_the_first_byte(models: Cache) -> None:
    with pytest.raises(Fault, match=r"the model needs \d+\.\d GB more and the volume has \d+\.\d GB free") as refused:
        models.check_room(models.folder("hub/a", "v1"), model(1 << 60))
    assert refused.value.field == "spec.model.cache"


def spec(size: str) -> dict[str, object]:
    one = spec_of("minimal")
    one["model"] = {**one["model"], "source": "hf://a/b", "cache": {"claim": "weights", "size": size}}
    return one


def test_the_size_reaches_the_container_and_is_part_of_the_revision_by_its_value() -> None:
    pod = deployment(child_of(spec("500Gi")), 1)["spec"]["template"]["spec"]
    assert "--cache-size=500Gi" in pod["initContainers"][0]["args"]
    assert revision_hash(spec("1Gi")) == revision_hash(spec("1024Mi")) != revision_hash(spec("2Gi"))


@pytest.mark.parametrize("size", ["0", "1m", "big"])
def test_a_size_that_can_hold_nothing_is_refused(size: str) -> None:
    parsed = parse(spec(size))
    assert isinstance(parsed, SpecErrors)
    assert [error.field for error in parsed.errors] == ["spec.model.cache.size"]


class Told:
    """A source of one model, or of none while it does not answer."""

    pinned = ""

    def __init__(self, name: str, size: int, version: str, answers: bool = True) -> None:
        self.folder, self._answers = f"hub/{name}", answers
        self._model = model(size, version)

    def model(self) -> Model:
        if not self._answers:
            raise Interrupted("the hub does not answer")
        return self._model

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        yield bytes(file.size - offset)


def test_a_model_of_a_pod_never_gives_way_to_another_one_of_the_same_pod(models: Cache) -> None:
    """The engine needs both, and a link to a model that is gone would be found by the engine only."""
    first = fetched(Told("a", 10, "v1"), "hf://a", models, Meter(), 15)
    with pytest.raises(Fault, match="of this pod") as caught:
        fetched(Told("b", 10, "v1"), "hf://b", models, Meter(), 15)
    assert caught.value.field == "spec.model.cache.size"
    assert models.complete(first)
    bring(models, "old", 9, None, 1.0)
    fetched(Told("b", 10, "v1"), "hf://b", models, Meter(), 20)
    assert there(models) == ["a/v1", "b/v1"]


def test_while_the_hub_is_silent_a_revision_is_never_replaced_by_another_one(models: Cache) -> None:
    """Two services share a claim: one has the tag v1 in it, and the other one asks for the tag v2."""
    folder = fetched(Told("a", 10, "1" * 40), "hf://a@v1", models, Meter(), None)
    assert fetched(Told("a", 10, "", False), "hf://a@v1", models, Meter(), None) == folder
    with pytest.raises(Interrupted):
        fetched(Told("a", 10, "", False), "hf://a@v2", models, Meter(), None)
    assert fetched(Told("a", 10, "1" * 40), "hf://a@main", models, Meter(), None) == folder
    assert fetched(Told("a", 10, "", False), "hf://a@main", models, Meter(), None) == folder


class Raced(Cache):
    """A cache in which a pod starts with a model just after another pod has looked which models give way."""

    starting: Path | None = None
    looks = 0

    def kept(self) -> list[Kept]:
        found = super().kept()
        if self.starting is not None:
            self.looks += 1
            if self.looks == 2:  # the first one adds up the models of the pod itself
                cache.touch(self.starting)
        return found


def test_a_model_that_a_pod_starts_with_meanwhile_stays(tmp_path: Path) -> None:
    """The pod's engine found no model, again and again, until somebody deleted the pod: a version that a source names by its commit is used
    without the model's lock, which another pod may hold for hours."""
    models = Raced(tmp_path)
    first = bring(models, "a", 40, None, 1)
    bring(models, "b", 40, None, 2)
    models.starting = first
    bring(models, "c", 40, 100, 3)
    assert there(models) == ["a/v1", "c/v1"]


class Pinned(Told):
    """A source that names its version."""

    pinned = "v1"


class Leaving(Cache):
    """A cache whose version is complete when it is looked for, and gone when it is used."""

    left = False

    def complete(self, folder: Path) -> bool:
        found = super().complete(folder)
        if found and not self.left:
            self.left = True
            shutil.rmtree(folder)
        return found


def test_a_model_that_gives_way_at_a_start_is_fetched_again(tmp_path: Path) -> None:
    models = Leaving(tmp_path)
    folder = bring(models, "a", 10, None, 1)
    assert fetched(Pinned("a", 10, "v1"), "hf://a", models, Meter(), None) == folder
    assert (folder / "m.safetensors").stat().st_size == 10
