"""Kubernetes' programs from Debian's source package, where no official release can be had.

The build is the one Debian's `kubernetes` package does, with Debian's Go and the vendored tree, less the cloud
providers (`-tags providerless`: half the time and size).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from pagefleet_local.assets import debian, golang, patches
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage

COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet")
VERSION = "1.20.2"
PACKAGES_COMPILED = 1900  # what `go build` prints for the five, roughly: the progress bar's length
OPENAPI_TAG = "+k8s:openapi-gen=true"


def build(target: Path) -> None:
    """Build the programs into `target`; complete or absent. Raises AssetError."""
    work = paths.cache() / "build"
    shutil.rmtree(work, ignore_errors=True)
    tree = work / "go/src/k8s.io/kubernetes"
    tree.parent.mkdir(parents=True)
    with stage("Kubernetes: source package") as report:
        _source(work, tree)
        patches.apply(tree)
        report("unpacked")
    # Together: Debian splits Go's tree over both and joins it with relative links.
    goroot = debian.unpacked(*debian.GO) / "usr/lib/go-1.19"
    environment = {
        **os.environ,
        "GOROOT": str(goroot), "GOPATH": str(work / "go"), "GOCACHE": str(work / "gocache"), "GO111MODULE": "off",
        "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local",
    }  # fmt: skip
    go = str(goroot / "bin/go")
    with stage("Kubernetes: OpenAPI definitions"):
        _openapi(go, tree, environment, work)
    with stage("Kubernetes: compile five programs (three to ten minutes, once)") as report:
        out = work / "bin"
        out.mkdir()
        targets = [f"./cmd/{name}" for name in COMPONENTS]
        command = [go, "build", "-v", "-tags", "providerless", "-trimpath", "-ldflags", _ldflags(), "-o", f"{out}/"]
        golang.compile_with([*command, *targets], tree, environment, report, PACKAGES_COMPILED)
        out.rename(target)
    subprocess.run(["chmod", "-R", "u+w", str(work)], check=False)
    shutil.rmtree(work, ignore_errors=True)


def _source(work: Path, tree: Path) -> None:
    """Fetch and unpack the source through deb-src lines made from the machine's own apt configuration."""
    lists = work / "lists"
    (lists / "partial").mkdir(parents=True)
    sources = work / "sources"
    sources.mkdir()
    for configured in [Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*")]:
        if configured.suffix in (".list", ".sources") and configured.is_file():
            text = configured.read_text()
            text = re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE)
            text = re.sub(r"^deb(?:-src)?\s", "deb-src ", text, flags=re.MULTILINE)
            if "debian" in text:
                (sources / configured.name).write_text(text)
    options = ("Dir::Etc::sourcelist=/dev/null", f"Dir::Etc::sourceparts={sources}", f"Dir::State::lists={lists}",
               "APT::Sandbox::User=root")  # fmt: skip
    debian.apt("update", options=options)
    debian.apt("source", "--download-only", "--only-source", "kubernetes", cwd=work, options=options)
    archive = next(work.glob("kubernetes_*.orig.tar.*"))
    tree.mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(tree), "--strip-components=1"], check=True)


def _openapi(go: str, tree: Path, environment: dict[str, str], work: Path) -> None:
    """Generate pkg/generated/openapi, which Debian's source leaves to the build, over every package with the tag."""
    tagged = subprocess.run(
        ["grep", "-rl", "--include=*.go", "-E", rf"^// \{OPENAPI_TAG}", "vendor/k8s.io/", "staging/src/k8s.io/", "pkg/", "cmd/"],
        cwd=tree, capture_output=True, text=True, check=False,
    ).stdout  # fmt: skip
    packages = set()
    for line in tagged.splitlines():
        if "_examples" in line or "sample-apiserver" in line:
            continue
        folder = str(Path(line).parent)
        for prefix, replacement in (("vendor/", ""), ("staging/src/", ""), ("pkg", "k8s.io/kubernetes/pkg"),
                                    ("cmd", "k8s.io/kubernetes/cmd")):  # fmt: skip
            if folder.startswith(prefix):
                folder = replacement + folder.removeprefix(prefix)
                break
        packages.add(folder)
    (work / "header").write_text("")
    golang.compile_with(
        [go, "run", "./vendor/k8s.io/kube-openapi/cmd/openapi-gen", "--input-dirs", ",".join(sorted(packages)),
         "--output-package", "k8s.io/kubernetes/pkg/generated/openapi", "--output-file-base", "zz_generated.openapi",
         "-h", str(work / "header"), "--output-base", f"{environment['GOPATH']}/src", "-r", str(work / "violations")],
        tree, environment, lambda _: None, PACKAGES_COMPILED,
    )  # fmt: skip


def _ldflags() -> str:
    values = {
        "gitVersion": f"v{VERSION}",
        "gitMajor": "1",
        "gitMinor": "20",
        "gitTreeState": "clean",
        "gitCommit": "debian",
    }
    flags = ["-s", "-w"]
    for package in ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version"):
        # In a GOPATH build a vendored package's import path begins with the vendor folder's.
        flags += [f"-X k8s.io/kubernetes/vendor/{package}.{name}={value}" for name, value in values.items()]
    return " ".join(flags)
