"""Protects the generated reference from leaving anything out: every field of the CRD, every series that the pieces'
`/metrics` say, every route that operator, gateway and engine really have, every command."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web
from prometheus_client import generate_latest
from support.piece_metrics import gateway_metrics

from pagefleet_batches.metrics import Metrics as BatchesMetrics
from pagefleet_batches.web import PREFIX, Api
from pagefleet_engine.api.observability.metrics import Metrics as EngineMetrics
from pagefleet_engine.core.requests import EngineConfig
from pagefleet_gateway.measuring.windows import Windows
from pagefleet_gateway.web import application
from pagefleet_operator.web.own_metrics import Metrics as OperatorMetrics
from pagefleet_operator.web.server import Server
from pagefleet_operator.web.status_page import StatusPage
from pagefleet_reference import http
from pagefleet_reference.pages import pages
from pagefleet_sidecar.metrics import Metrics as SidecarMetrics

CHECKOUT = Path(__file__).resolve().parents[2]
PAGES = pages()


def fields(path: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    inner = schema.get("items", schema)
    below = path + ("[]" if "items" in schema else "")
    for name, field in inner.get("properties", {}).items():
        yield f"{below}.{name}", field
        yield from fields(f"{below}.{name}", field)


def test_every_field_of_the_crd_has_a_row() -> None:
    """Against the file that users apply, not the code that made the page."""
    crd = yaml.safe_load((CHECKOUT / "crds/inferenceservices.yaml").read_text())
    root = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    rows = {
        match[1]: line for line in PAGES["crd.md"].splitlines() if (match := re.match(r"\| \**`([^`]+)`\** ", line))
    }
    expected = dict(fields("", root["spec"])) | {f".status{name}": field for name, field in fields("", root["status"])}
    assert len(expected) > 150
    for path, field in expected.items():
        row = rows[path.lstrip(".")]
        for value in field.get("enum", ()):
            assert f"`{value}`" in row, path
        if "default" in field and not isinstance(field["default"], dict):
            assert str(field["default"]).lower() in row.lower(), path


def test_every_metric_has_a_row() -> None:
    named = set(re.findall(r"^\| `((?:pagefleet|llm|gen_ai)_\w+)` ", PAGES["metrics.md"], re.MULTILINE))
    texts = [EngineMetrics("m", EngineConfig("file:///m")).text(), gateway_metrics().text(), OperatorMetrics().text()]
    texts += [generate_latest(BatchesMetrics().registry), SidecarMetrics().page()]
    documented = {
        line.split()[2]
        for text in texts
        for line in text.decode().splitlines()
        if line.startswith("# TYPE") and not line.split()[2].endswith("_created")
    }
    assert len(documented) > 40
    assert documented == named


def routes(app: web.Application) -> set[tuple[str, str]]:
    served = {(route.method, route.resource.canonical) for route in app.router.routes() if route.resource}
    return {route for route in served if route[0] != "HEAD"}


def test_every_route_of_the_batches_server_is_described() -> None:
    served = routes(Api(None, None, None).application())  # type: ignore[arg-type]
    below = PREFIX.replace(":[^/]+", "")
    assert served == {(method, at + path) for method, path in http.BATCHES for at in ("", below)}


async def test_every_route_of_the_operator_is_described(tmp_path: Path) -> None:
    class Nothing:
        def find(self, kind: str, namespace: str, name: str) -> None: ...

        def names(self, kind: str) -> list[tuple[str, str]]:
            return []

    async def alerts(_: web.Request) -> web.Response:
        return web.Response()

    page = StatusPage(Nothing(), tmp_path / "token", lambda: True)
    runner = await Server(OperatorMetrics(), alerts, lambda: True, page).start(0)
    try:
        assert routes(runner.app) == set(http.OPERATOR)
    finally:
        await runner.cleanup()


def test_every_route_of_the_gateway_is_described() -> None:
    app = application(lambda: "", gateway_metrics(), Windows("i"), lambda _: 0, dict)
    assert routes(app) == set(http.GATEWAY)


def test_every_route_of_the_engine_is_described() -> None:
    source = (CHECKOUT / "engine/pagefleet_engine/api/server.py").read_text()
    paths = {
        re.sub(r":[^}]*", "", path) for path in re.findall(r"^\s+(?:post|get)\(\"([^\"]+)\"", source, re.MULTILINE)
    }
    assert len(paths) > 15
    described = set(re.findall(r"^### [A-Z]+ (\S+)$", PAGES["http.md"], re.MULTILINE))
    assert paths - described == {"/openapi.json"}


@pytest.mark.parametrize("section", re.findall(r"^## (pagefleet .+)$", PAGES["cli.md"], re.MULTILINE))
def test_every_option_of_a_command_is_one(section: str) -> None:
    """The output of --help and the page name the same options."""
    command = [sys.executable, "-c", "from pagefleet_cli.main import app; app(prog_name='pagefleet')"]
    environment = {"COLUMNS": "400", "TERM": "dumb", "NO_COLOR": "1", "PATH": ""}
    shown = subprocess.run(
        [*command, *section.split()[1:], "--help"], capture_output=True, text=True, check=True,
        env={**environment, "PYTHONPATH": ":".join(sys.path)},
    ).stdout  # fmt: skip
    page = PAGES["cli.md"].split(f"## {section}\n")[1].split("\n## ")[0]
    documented = set(
        re.findall(r"(?<![\w-])--[a-z][a-z-]*", re.sub(r"^.*?(?=^\W*--|^.*Options)", "", shown, flags=re.DOTALL))
    )
    named = set(re.findall(r"--[a-z][a-z-]*", "".join(re.findall(r"^\| (`-.*?) \| ", page, re.MULTILINE))))
    assert named - documented == set()
    assert documented - named - {"--help"} - set(re.findall(r"--[a-z][a-z-]*", page)) == set()
