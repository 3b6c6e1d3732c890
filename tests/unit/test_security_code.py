"""Protects what the shipped code never does: run what a model file, a request or an object contains, start a shell,
listen where no manifest says so, fetch a URL that came in a request, or follow a redirect. Row 26 of the reliability table."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagefleet_engine.api.base.errors import ApiError
from pagefleet_engine.api.parameters import parse

ROOT = Path(__file__).resolve().parents[2]
UNSAFE_MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "jsonpickle"}
UNSAFE_CALLS = {
    "eval", "exec", "os.system", "os.popen", "yaml.load", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all",
    "asyncio.create_subprocess_shell", "subprocess.getoutput", "subprocess.getstatusoutput", "__import__",
}  # fmt: skip
HTTP_CLIENTS = {"requests", "httpx", "urllib.request", "http.client", "urllib3", "obstore", "oras"}


def files(*roots: str) -> list[Path]:
    return sorted(path for root in roots for path in (ROOT / root).rglob("*.py"))


def dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


def faults(source: str) -> list[str]:
    """Return the actions of a file that shipped code must not have."""
    tree, messages = ast.parse(source), []
    messages += [f"imports {name}" for name in imported(tree) if name.split(".")[0] in UNSAFE_MODULES]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name, given = dotted(call.func), {word.arg: word.value for word in call.keywords}
        if name in UNSAFE_CALLS:
            messages.append(f"calls {name}")
        if name.endswith("torch.load") and not _is(given.get("weights_only"), True):
            messages.append("calls torch.load without weights_only=True")
        if name.split(".")[0] in ("np", "numpy") and name.endswith(".load") and _is(given.get("allow_pickle"), True):
            messages.append("calls numpy.load with allow_pickle")
        if "shell" in given and not _is(given["shell"], False):
            messages.append(f"calls {name} with a shell")
        if "trust_remote_code" in given:
            messages.append(f"calls {name} with trust_remote_code")
    return messages


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_shipped_file_runs_what_it_reads() -> None:
    looked = files("contract", "operator", "engine", "kernels", "gateway", "local")
    assert len(looked) > 200
    faults_by_file = {str(path.relative_to(ROOT)): bad for path in looked if (bad := faults(path.read_text()))}
    assert faults_by_file == {}


@pytest.mark.parametrize(
    "source",
    [
        "import pickle", "from pickle import loads", "import joblib", "eval('1')", "exec(code)", "import yaml\nyaml.load(f)",
        "torch.load(path)", "torch.load(path, weights_only=False)", "np.load(path, allow_pickle=True)",
        "subprocess.run('ls', shell=True)", "os.system('ls')", "AutoModel.from_pretrained(x, trust_remote_code=False)",
    ],
)  # fmt: skip
def test_the_check_itself_sees(source: str) -> None:
    assert faults(source)


def test_weights_are_only_read_from_safetensors_and_gguf() -> None:
    """No pattern of what is fetched or opened names a format that carries code."""
    named = [
        (path.name, node.value)
        for path in files("engine")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        if node.value.endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt")) and len(node.value) < 40
    ]
    unwanted = {value for name, value in named if name == "source.py"}
    assert {value for _, value in named} <= unwanted, named


def test_only_the_model_hub_is_called_from_the_engine() -> None:
    """Of modules that could fetch something, `source` imports the hub's client for hf://; the rest none."""
    calling = {}
    for path in files("engine", "kernels"):
        tree = ast.parse(path.read_text())
        clients = {name for name in imported(tree) if name in HTTP_CLIENTS or name.startswith("huggingface_hub")}
        clients |= {name for name in map(dotted, _calls(tree)) if name.endswith("ClientSession")}
        if clients:
            calling[path.name] = clients
    assert set(calling) <= {"source.py", "traces.py"}, calling


def _calls(tree: ast.AST) -> Iterator[ast.expr]:
    return (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))


VERBS = {"get", "post", "put", "patch", "delete", "head", "options", "request", "ws_connect"}


def redirected(source: str) -> list[str]:
    """Return the requests of an HTTP session that would follow a redirect. A request is a verb that is called on a session, or in
    the head of an `async with`."""
    tree = ast.parse(source)
    opened = {item.context_expr for node in ast.walk(tree) if isinstance(node, ast.AsyncWith) for item in node.items}
    calls = []
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if not isinstance(call.func, ast.Attribute) or call.func.attr not in VERBS:
            continue
        on_a_session = any(word in ast.unparse(call.func.value).lower() for word in ("session", "http"))
        if (on_a_session or call in opened) and not any(
            word.arg == "allow_redirects" and _is(word.value, False) for word in call.keywords
        ):
            calls.append(f"line {call.lineno}: {ast.unparse(call)[:60]}")
    return calls


def test_operator_and_gateway_follow_no_redirect() -> None:
    """A pod that answers with a redirect would make them ask any URL, with their place in the network."""
    looked = files("operator/pagefleet_operator", "gateway", "contract")
    calls_by_file = {str(path.relative_to(ROOT)): bad for path in looked if (bad := redirected(path.read_text()))}
    assert calls_by_file == {}


@pytest.mark.parametrize(
    "source",
    [
        "async def f():\n async with self._session.get(url) as response: pass",
        "async def f():\n await session.request('GET', url, allow_redirects=True)",
        "async def f():\n async with client.post(url, data=x) as response: pass",
        "async def f():\n async with slots, http.head(url) as response: pass",
    ],
)
def test_the_check_for_redirects_itself_sees(source: str) -> None:
    assert redirected(source)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": "http://169.254.169.254/latest/meta-data"}},
        {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
        {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}},
        {"type": "file", "file": {"file_id": "x"}},
        {"type": "video_url", "video_url": {"url": "http://10.0.0.1/"}},
        {"type": "text", "text": {"url": "http://10.0.0.1/"}},
    ],
    ids=lambda part: part["type"],
)
def test_a_url_in_a_request_is_refused_and_never_fetched(part: dict[str, object]) -> None:
    with pytest.raises(ApiError) as refused:
        parse({"model": "m", "messages": [{"role": "user", "content": [part]}]}, chat=True)
    assert refused.value.status == 400


def test_sockets_are_opened_where_ports_are_declared() -> None:
    """Who listens on TCP: the four servers, whose ports the manifests name (test_security_manifests), the container that fetches a model, the
    routing sidecar, the first node of a group, whose port only its group may reach, and no other."""
    listening = {
        "create_server", "start_server", "TCPSite", "SockSite", "add_insecure_port", "add_secure_port", "listening_socket",
    }  # fmt: skip
    openers = {
        str(path.relative_to(ROOT))
        for path in files("contract", "operator", "engine", "kernels", "gateway")
        for call in _calls(ast.parse(path.read_text()))
        if dotted(call).split(".")[-1] in listening
    }
    assert openers == {
        "engine/pagefleet_engine/api/server.py",
        "engine/pagefleet_engine/runner/device/ranks/nodes.py",
        "gateway/pagefleet_gateway/fronts/ext_proc_server.py",
        "gateway/pagefleet_batches/main.py",
        "operator/pagefleet_sidecar/main.py",
        "gateway/pagefleet_gateway/app.py",
        "contract/pagefleet_contract/addresses.py",
        "operator/pagefleet_fetch/progress.py",
        "operator/pagefleet_operator/web/server.py",
    }
