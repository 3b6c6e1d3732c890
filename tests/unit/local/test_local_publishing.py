"""Protects what others find a release by: a manifest and an archive of the kubectl plugin that krew takes, the same bytes for the same content,
and Artifact Hub's metadata of a repository; and that what cannot be published is refused with what is allowed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.artifact_hub import faults as faults_of_annotations
from support.krew import faults, install

from pagefleet_local.publishing import archive, artifact_hub, krew
from pagefleet_local.publishing.krew import Archive, PublishingError

HOME, URL = "https://pagefleet.example.com", "https://downloads.example.com/v0.1.0"
ID = "0b2b8a2c-4b0c-4d7a-9d2e-7a3f2f5e1c11"


def packed(folder: Path, name: str = "a.tar.gz") -> Path:
    """The archive of a program with a library that is there twice, once as a link."""
    content = folder / "content"
    if not content.is_dir():
        (content / "_internal/libs").mkdir(parents=True)
        (content / "kubectl-pagefleet").write_text(
            '#!/bin/sh\ncat "$(dirname "$(readlink -f "$0")")/_internal/library"\n'
        )
        (content / "kubectl-pagefleet").chmod(0o755)
        (content / "_internal/libs/library").write_text("found\n")
        (content / "_internal/library").symlink_to("libs/library")
        os.link(content / "_internal/libs/library", content / "_internal/libs/again")
        (content / "LICENSE").write_text("Apache-2.0")
    archive.pack(content, folder / name)
    return folder / name


def plugin(*platforms: tuple[str, str], digest: str = "a" * 64, version: str = "0.1.0") -> dict[str, Any]:
    made = [Archive(*one, f"{URL}/{krew.file_name(*one)}", digest) for one in platforms]
    document: dict[str, Any] = yaml.safe_load(krew.manifest(version, HOME, made))
    return document


def test_krew_takes_the_manifest_of_any_platforms() -> None:
    for chosen in (krew.PLATFORMS[:1], krew.PLATFORMS):
        assert faults("pagefleet", plugin(*chosen)) == []
    assert faults("pagefleet", plugin(krew.PLATFORMS[0], version="1.2.3-rc.1")) == []


def test_artifact_hub_takes_the_manifest_s_annotations() -> None:
    annotations = plugin(krew.PLATFORMS[0])["metadata"]["annotations"]
    assert faults_of_annotations("krew", annotations) == []
    for change in ({"category": "llm"}, {"keywords": "llm"}, {"operator": "true"}, {"license": 2}):
        assert faults_of_annotations("krew", annotations | {f"artifacthub.io/{k}": v for k, v in change.items()})


def test_the_restated_rules_refuse_what_krew_refuses() -> None:
    document = plugin(krew.PLATFORMS[0])
    [platform] = document["spec"]["platforms"]
    for broken in (
        document | {"apiVersion": "v1"}, document | {"metadata": {"name": "other"}}, document | {"extra": 1},
        *(document | {"spec": document["spec"] | change} for change in (
            {"version": "0.1.0"}, {"shortDescription": "a\nb"}, {"platforms": []}, {"platforms": [platform, platform]},
            {"platforms": [platform | {"sha256": "A" * 64}]}, {"platforms": [platform | {"files": []}]},
            {"platforms": [platform | {"selector": {"matchLabels": {"os": "plan9", "arch": "amd64"}}}]},
        )),
    ):  # fmt: skip
        assert faults("pagefleet", broken), broken


def test_an_archive_is_installed_and_runs_by_its_link(tmp_path: Path) -> None:
    made = packed(tmp_path)
    digest = hashlib.sha256(made.read_bytes()).hexdigest()
    [platform] = plugin(("linux", "amd64"), digest=digest)["spec"]["platforms"]
    link = install(tmp_path / "krew", platform, made)
    assert subprocess.run([link], capture_output=True, text=True, check=True).stdout == "found\n"


def test_the_same_content_makes_the_same_bytes(tmp_path: Path) -> None:
    first = packed(tmp_path).read_bytes()
    for path in (tmp_path / "content").rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert packed(tmp_path, "b.tar.gz").read_bytes() == first


def test_a_name_that_krew_refuses_is_refused_before(tmp_path: Path) -> None:
    (tmp_path / "content").mkdir()
    (tmp_path / "content/a..b").touch()
    with pytest.raises(PublishingError, match="two dots"):
        archive.pack(tmp_path / "content", tmp_path / "a.tar.gz")


@pytest.mark.parametrize(
    ("version", "homepage", "archives", "message"),
    [
        ("1.2", HOME, [Archive("linux", "amd64", URL, "a" * 64)], "version 1.2 must be like"),
        (
            "1.2.3",
            "http://a",
            [Archive("linux", "amd64", URL, "a" * 64)],
            "homepage 'http://a' must begin with https://",
        ),
        ("1.2.3", HOME, [Archive("linux", "amd64", "file:///a", "a" * 64)], "URL 'file:///a' must begin with https://"),
        ("1.2.3", HOME, [], "there is no archive"),
    ],
)
def test_what_is_no_manifest_is_refused(version: str, homepage: str, archives: list[Archive], message: str) -> None:
    with pytest.raises(PublishingError) as refused:
        krew.manifest(version, homepage, archives)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "name", ["kubectl-pagefleet_plan9_amd64.tar.gz", "other.tar.gz", "kubectl-pagefleet_linux_amd64.zip"]
)
def test_a_file_that_is_no_archive_of_the_plugin_is_refused(name: str) -> None:
    with pytest.raises(PublishingError, match="is no archive of the plugin; those are named"):
        krew.platform_of(name)


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pagefleet_local.publishing", *words], capture_output=True, text=True, check=False
    )


def test_the_command_writes_the_manifest_of_the_archives_that_are_there(tmp_path: Path) -> None:
    for one in (("linux", "amd64"), ("darwin", "arm64")):
        packed(tmp_path, krew.file_name(*one))
    done = command("plugin-manifest", "--folder", str(tmp_path), "--url", f"{URL}/", "--homepage", HOME)
    assert done.returncode == 0, done.stderr
    written = yaml.safe_load((tmp_path / "pagefleet.yaml").read_text())
    assert faults("pagefleet", written) == []
    digest = hashlib.sha256((tmp_path / krew.file_name("linux", "amd64")).read_bytes()).hexdigest()
    assert [(one["uri"], one["sha256"]) for one in written["spec"]["platforms"]] == [
        (f"{URL}/kubectl-pagefleet_darwin_arm64.tar.gz", digest), (f"{URL}/kubectl-pagefleet_linux_amd64.tar.gz", digest),
    ]  # fmt: skip
    (tmp_path / "x.tar.gz").touch()
    refused = command("plugin-manifest", "--folder", str(tmp_path), "--url", URL, "--homepage", HOME)
    assert refused.returncode == 1
    assert "x.tar.gz is no archive of the plugin" in refused.stdout


def test_artifact_hub_gets_the_owners_of_a_repository() -> None:
    """Of artifacthub-repo.yml: https://artifacthub.io/docs/topics/repositories/#ownership-claim."""
    written = yaml.safe_load(artifact_hub.repository(ID.upper(), ["A. Person <a@example.com>"]))
    assert written == {"repositoryID": ID, "owners": [{"name": "A. Person", "email": "a@example.com"}]}
    assert yaml.safe_load(artifact_hub.repository(ID, [])) == {"repositoryID": ID}
    for identifier, owners, message in (("7", [], "must be the UUID"), (ID, ["a@example.com"], "must be NAME <EMAIL>")):
        with pytest.raises(PublishingError, match=message):
            artifact_hub.repository(identifier, owners)
