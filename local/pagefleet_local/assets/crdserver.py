"""Kubernetes' own server of custom resources (k8s.io/apiextensions-apiserver) of a current version, which evaluates CEL rules and
ratchets, and a check of manifests by Kubernetes' Go types of that version (manifestcheck/main.go). Built once from the Go packages
of Debian's newest suite.

The server is the part of kube-apiserver that serves CustomResourceDefinitions and their objects, as a program of its own. Debian's archive
has no other part of a newer Kubernetes than 1.20. A build that was interrupted goes on where it was.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pagefleet_local.assets import debian, golang
from pagefleet_local.assets.suite import Suite
from pagefleet_local.base import paths
from pagefleet_local.base.console import stage
from pagefleet_local.base.sources import digest

SUITE = "sid"
PROGRAM = "apiextensions-apiserver"
SOURCE = "golang-k8s-apiextensions-apiserver-dev"
IMPORT = "k8s.io/apiextensions-apiserver"
GO = "1.26"  # the version that the recipe was proven with, preferred while the suite has it
CHECK = Path(__file__).with_name("manifestcheck") / "main.go"
PACKAGES_COMPILED = 1360  # for the server; the check needs a part of them
EMULATED_MINORS = 3  # versions back, by KEP-4330
PACKAGES = Path(__file__).with_name("crdserver-packages.txt")
KEPT_WORK = "crd-server-build"


@dataclass(frozen=True)
class CrdServer:
    """The program, and the version of the Kubernetes that it is of (1.36.4). `manifest_check` reads manifests, as JSON documents
    one after the other, and prints for each what is wrong with it in that version, a JSON list a line."""

    folder: Path
    version: str

    @property
    def program(self) -> Path:
        return self.folder / PROGRAM

    @property
    def manifest_check(self) -> Path:
        return self.folder / f"manifestcheck-{digest([CHECK], CHECK.parent)[:12]}"

    @property
    def is_whole(self) -> bool:
        return self.program.is_file() and self.manifest_check.is_file()

    @property
    def minor(self) -> int:
        return int(self.version.split(".")[1])

    @property
    def oldest_emulated(self) -> str:
        """The oldest version of Kubernetes that it can behave as."""
        return f"1.{self.minor - EMULATED_MINORS}"


def crd_server() -> CrdServer:
    """Return the newest one in the cache, or build one. Raises debian.AssetError when it cannot be built."""
    with debian.locked("crd-server"):
        return _cached() or _built()


def _cached() -> CrdServer | None:
    folders = paths.cache().glob("crd-server-[0-9]*")
    servers = [CrdServer(path, path.name.removeprefix("crd-server-")) for path in folders]
    return max(
        (server for server in servers if server.is_whole),
        key=lambda server: [int(part) for part in server.version.split(".")],
        default=None,
    )


def _built() -> CrdServer:
    work = paths.cache() / KEPT_WORK
    suite = Suite(SUITE, work)
    with stage("Kubernetes' CRD server: packages") as report:
        suite.update()
        known = suite.known("golang-go", f"golang-{GO}-go", *_packages())
        version, go = kubernetes_version(known), go_version(known)
        # Where one was renamed, the check of the imports names what is missing.
        packages = [name for name in _packages() if name in known]
        suite.unpack([f"golang-{go}-go", f"golang-{go}-src", *packages], work / "root", report)
    goroot = work / f"root/usr/lib/go-{go}"
    environment = {
        **os.environ,
        "GOROOT": str(goroot), "GOPATH": str(work / "root/usr/share/gocode"), "GOCACHE": str(work / "gocache"),
        "GO111MODULE": "off", "CGO_ENABLED": "0", "GOFLAGS": "", "GOTOOLCHAIN": "local",
    }  # fmt: skip
    program = str(goroot / "bin/go")
    _check_imports(program, work, environment)
    server = CrdServer(paths.cache() / f"crd-server-{version}", version)
    server.folder.mkdir(exist_ok=True)
    for made, source in ((server.program, IMPORT), (server.manifest_check, str(CHECK))):
        if made.is_file():
            continue
        with stage(f"Kubernetes {version}: compile {made.name} (minutes, once)") as report:
            # It gives way to everything else: nothing waits for it alone.
            command = ["nice", "-n", "19", program, "build", "-v", "-trimpath", "-ldflags", _ldflags(version)]
            built = work / made.name
            golang.compile_with([*command, "-o", str(built), source], work, environment, report, PACKAGES_COMPILED)
            built.rename(made)
    shutil.rmtree(work, ignore_errors=True)
    return server


def kubernetes_version(known: Mapping[str, Mapping[str, str]]) -> str:
    """Return the version of Kubernetes that the suite's CRD server is of: 1.36.4 for 0.36.4-1. Raises AssetError."""
    package = known.get(SOURCE, {}).get("Version", "")
    found = re.match(r"(?:\d+:)?0\.(\d+\.\d+)", package)
    if not found:
        raise debian.AssetError(f"Debian {SUITE} has {SOURCE} {package!r}: no version of Kubernetes' CRD server")
    return f"1.{found[1]}"


def go_version(known: Mapping[str, Mapping[str, str]]) -> str:
    """Return GO while the suite has it, else the version of the suite's golang-go. Raises AssetError."""
    if f"golang-{GO}-go" in known:
        return GO
    found = re.search(r"golang-([\d.]+)-go", known.get("golang-go", {}).get("Depends", ""))
    if not found:
        raise debian.AssetError(f"Debian {SUITE} has no Go: its golang-go depends on no golang-VERSION-go")
    return found[1]


def _packages() -> list[str]:
    return [line for line in PACKAGES.read_text().splitlines() if line and not line.startswith("#")]


def _check_imports(go: str, work: Path, environment: dict[str, str]) -> None:
    """Raise AssetError with every import that no unpacked package holds."""
    template = "{{if .Error}}{{if not .Standard}}{{.ImportPath}}{{end}}{{end}}"
    command = [go, "list", "-e", "-deps", "-f", template, IMPORT]
    shown = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    missing = shown.stdout.split()
    if missing or shown.returncode:
        raise debian.AssetError(
            f"Debian {SUITE} has changed: {', '.join(missing[:5]) or shown.stderr.strip()[-600:]} "
            f"({len(missing)} imports in all) is in no package of {PACKAGES.name}"
        )


def _ldflags(version: str) -> str:
    major, minor, _ = version.split(".")
    values = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    return " ".join(["-s -w", *(f"-X k8s.io/component-base/version.{name}={value}" for name, value in values.items())])
