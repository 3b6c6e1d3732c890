"""The systems that are measured side by side: the gateway, and the proxies and routers that people use in its place.

Each is started on a port with the same engines behind it and stopped by its own process id. A peer that is not installed
is left out, with a line that states why; `make_peers` installs the available ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from pagefleet_gateway.envoy.process import executable
from pagefleet_gateway.envoy.processors import default_workers

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("PAGEFLEET_CACHE") or Path("~/.cache/pagefleet").expanduser())
PEERS = CACHE / "peers"
NGINX = PEERS / "nginx/usr/sbin/nginx"
WHEELS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2"}


Command = Callable[[int, Sequence[int], Path], list[str]]


@dataclass(frozen=True)
class System:
    """`command(port, engine ports, folder)`; None: the load goes to the first engine itself."""

    name: str
    command: Command | None = None
    path: str = "/v1/completions"
    missing: Callable[[], str] = lambda: ""


class Running:
    """A started system; `cores` is the processor time it used, in cores, since `mark`."""

    def __init__(self, process: subprocess.Popen[bytes] | subprocess.Popen[str] | None, port: int) -> None:
        self.process, self.port = process, port
        self.mark()

    def mark(self) -> None:
        self._at, self._used = time.monotonic(), self._seconds()

    def cores(self) -> float:
        return (self._seconds() - self._used) / (time.monotonic() - self._at)

    def _seconds(self) -> float:
        if self.process is None:
            return 0.0
        total = 0.0
        tree = psutil.Process(self.process.pid)
        for one in [tree, *tree.children(recursive=True)]:
            try:
                times = one.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def stop(self) -> None:
        if self.process is None:
            return
        tree = psutil.Process(self.process.pid)
        processes = [tree, *tree.children(recursive=True)]
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(5)
        for one in processes:
            if one.is_running() and one.status() != psutil.STATUS_ZOMBIE:
                one.kill()


def start(system: System, port: int, engines: Sequence[int], folder: Path) -> Running:
    """Raises RuntimeError when it does not answer within a minute; its output is in `folder`."""
    if system.command is None:
        return Running(None, engines[0])
    log = folder / f"{system.name}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            system.command(port, engines, folder), cwd=ROOT, env=environment(), stdout=output, stderr=output
        )
    running = Running(process, port)
    try:
        wait_for(process, f"http://127.0.0.1:{port}{system.path}", log)
    except RuntimeError:
        running.stop()
        raise
    return running


def wait_for(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    body = json.dumps({"model": "m", "prompt": "x", "max_tokens": 1, "stream": True}).encode()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            asked = urllib.request.Request(url, body, {"content-type": "application/json"})
            with urllib.request.urlopen(asked, timeout=5) as response:
                if response.status == 200 and response.read():
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.1)
    raise RuntimeError(f"it did not answer: {log.read_text(errors='replace')[-600:]}")


def environment() -> dict[str, str]:
    parts = [ROOT, *(ROOT / name for name in ("contract", "gateway", "operator"))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, parts), os.environ.get("PYTHONPATH", "")])}


def _pagefleet(workers: int) -> Command:
    """`workers`: Envoy's threads."""

    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        program = [sys.executable, "-m", "bench.gatewaybench.serve", "--workers", str(workers)]
        return [*program, "--port", str(port), "--engines", ",".join(map(str, engines))]

    return command


def _envoy(workers: int) -> Command:
    """Round robin, no filter but the router, no access log."""

    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        file = folder / "envoy.json"
        file.write_text(json.dumps(_envoy_document(port, engines)))
        threads = ["--concurrency", str(workers)]
        return [str(executable()), "-c", str(file), *threads, "--disable-hot-restart", "--log-level", "error"]

    return command


def _envoy_document(port: int, engines: Sequence[int]) -> dict[str, object]:
    router = {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"}
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "in",
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all",
                    "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "engines", "timeout": "0s"}}],
                }
            ]
        },
    }
    socket = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": port}}}
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoints = [
        {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": number}}}}
        for number in engines
    ]
    cluster = {
        "name": "engines",
        "type": "STATIC",
        "lb_policy": "ROUND_ROBIN",
        "circuit_breakers": {"thresholds": [{"max_connections": 65536, "max_pending_requests": 65536, "max_requests": 65536}]},
        "load_assignment": {"cluster_name": "engines", "endpoints": [{"lb_endpoints": endpoints}]},
    }  # fmt: skip
    listener = {"name": "in", "filter_chains": [chain], **socket}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def _nginx(workers: int) -> Command:
    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        servers = "".join(f"server 127.0.0.1:{number};" for number in engines)
        file = folder / "nginx.conf"
        file.write_text(
            f"daemon off; worker_processes {workers}; pid {folder}/nginx.pid; error_log stderr crit;\n"
            "events { worker_connections 16384; }\n"
            "http { access_log off; client_body_buffer_size 1m; client_max_body_size 8m;\n"
            f" client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;\n"
            f" uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;\n"
            f" upstream engines {{ {servers} keepalive 1024; keepalive_requests 1000000; }}\n"
            f" server {{ listen 127.0.0.1:{port} backlog=1024; keepalive_requests 1000000; location / {{\n"
            '  proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off; } } }\n'
        )
        return [str(NGINX), "-c", str(file), "-e", "stderr", "-p", str(folder)]

    return command


def _router(name: str) -> Command:
    def command(port: int, engines: Sequence[int], folder: Path) -> list[str]:
        program = str(PEERS / name / "bin" / name)
        launch = [program, "launch"] if name == "sglang-router" else [program]
        workers = [f"http://127.0.0.1:{number}" for number in engines]
        ports = ["--host", "127.0.0.1", "--port", str(port), "--prometheus-port", str(port + 1)]
        return [*launch, *ports, "--policy", "cache_aware", "--log-level", "error", "--worker-urls", *workers]

    return command


def _absent(file: Path) -> Callable[[], str]:
    return lambda: "" if file.exists() else "not there: run bench/gateway.py --make-peers"


def systems(workers: int) -> tuple[System, ...]:
    """Ours, Envoy and nginx with that many threads or processes for the bytes; the routers use all cores by themselves."""
    return (
        System("direct"),
        System("pagefleet", _pagefleet(workers), "/team/chat/v1/completions"),
        System("envoy", _envoy(workers)),
        System("nginx", _nginx(workers), missing=_absent(NGINX)),
        *(System(name, _router(name), missing=_absent(PEERS / name / "bin" / name)) for name in WHEELS),
    )


# As many threads as the gateway takes by itself; and one thread, to measure how much it carries.
SYSTEMS = systems(default_workers())
ONE_THREAD = tuple(
    replace(one, name=f"{one.name}, 1 thread") for one in systems(1) if one.name in ("pagefleet", "envoy", "nginx")
)


def make_peers() -> None:
    """nginx out of Debian's package, unpacked and not installed; the routers in virtual environments of their own."""
    if not NGINX.exists():
        folder = NGINX.parents[2]
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["apt-get", "download", "-qq", "nginx"], cwd=folder, check=False)
        for package in folder.glob("*.deb"):
            subprocess.run(["dpkg-deb", "-x", str(package), str(folder)], check=True)
        if not NGINX.exists():
            print("peers: apt-get brings no nginx: it is left out", flush=True)
            shutil.rmtree(folder)
    for name, version in WHEELS.items():
        home = PEERS / name
        if (home / "bin" / name).exists():
            continue
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        pip = [str(home / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        if subprocess.run([*pip, f"{name}=={version}"], check=False).returncode:
            print(f"peers: pip brings no {name} {version}: it is left out", flush=True)
