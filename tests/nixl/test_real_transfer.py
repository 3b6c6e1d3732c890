"""Two real vLLMs that give each other KV pages (NIXL over TCP, on the CPU), started with the command lines that the operator writes,
behind the real routing sidecar, the real picker and a real Envoy.

Protects that the protocol is vLLM's: a decode engine computes nothing of a prompt whose pages it fetches, answers the same as an engine
that computes it, and goes on when the prefill engine dies with the pages. Not part of `make test`: it needs a vLLM with NIXL
(`python bench/peers.py vllm nixl`, or PAGEFLEET_VLLM_PYTHON), and minutes. The model is tiny and its weights are made up, alike in both.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from support.gateway.fleet import STABLE, Fleet, running, until
from support.gateway.split_engines import free_port
from support.golden_manifests import child_of

from pagefleet_contract.headers import PREFILLED_HEADER
from pagefleet_gateway.cluster.engines import engine_from
from pagefleet_gateway.cluster.state import Pod
from pagefleet_operator.domain.base.child import Child
from pagefleet_operator.domain.manifests.deployment import deployment
from pagefleet_operator.domain.manifests.prefill import prefill_deployment
from pagefleet_sidecar.in_turn import InTurn
from pagefleet_sidecar.legs import REMOTE_DECODE
from pagefleet_sidecar.main import listening
from pagefleet_sidecar.proxy import Settings

CACHE = Path(os.environ.get("PAGEFLEET_CACHE") or Path("~/.cache/pagefleet").expanduser())
PYTHON = Path(os.environ.get("PAGEFLEET_VLLM_PYTHON") or CACHE / "peers/vllm/bin/python")
START_SECONDS = 600.0  # on two cores that others use too
HOSTS = {"prefill": "127.0.0.11", "decode": "127.0.0.12"}
PROMPT = "The quick brown fox jumps over the lazy dog. " * 40  # a token for each byte
MAKE_MODEL = """
import json, sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
folder = sys.argv[1]
vocabulary = {one: index for index, one in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab={**vocabulary, "</s>": 256, "<s>": 257}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
fast.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
fast.save_pretrained(folder)
config = dict(architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=256, intermediate_size=512, num_hidden_layers=4,
              num_attention_heads=4, num_key_value_heads=2, head_dim=64, vocab_size=320, max_position_embeddings=8192,
              rms_norm_eps=1e-5, tie_word_embeddings=False, torch_dtype="float32", bos_token_id=257, eos_token_id=256, hidden_act="silu")
json.dump(config, open(folder + "/config.json", "w"))
"""


def child(model: Path) -> Child:
    engine = {
        "runtime": "vllm",
        "image": "with-nixl:1",
        "args": ["--load-format=dummy", "--enforce-eager", "--dtype=float32"],
        "disaggregation": {"prefill": {"replicas": 1}, "minPromptTokens": 64},
    }
    source = {"source": f"file://{model}", "servedName": "smol", "maxLength": 4096}
    return child_of({"model": source, "engine": engine, "resources": {"cpu": "1", "memory": "1Gi"}})


def interpreter() -> Path:
    """Return vLLM's Python."""
    assert PYTHON.exists(), f"{PYTHON} is not there: run `python bench/peers.py vllm nixl`"
    return PYTHON


class VLLM:
    """A process with the command line and the variables of a pod's engine container."""

    def __init__(self, kind: str, manifest: dict[str, Any], folder: Path) -> None:
        container = manifest["spec"]["template"]["spec"]["containers"][0]
        self.host, self.port, self.log = HOSTS[kind], free_port(), folder / f"{kind}.log"
        self.annotations: dict[str, str] = manifest["spec"]["template"]["metadata"]["annotations"]
        given = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        home = {"HOME": str(folder), "HF_HUB_OFFLINE": "1", "UCX_TLS": "tcp,self,sm", "UCX_NET_DEVICES": "lo"}
        here = {"VLLM_NIXL_SIDE_CHANNEL_HOST": self.host, "VLLM_HOST_IP": "127.0.0.1"}
        self._environment = {**os.environ, **given, **home, **here}
        self._command = [
            "-m",
            "vllm.entrypoints.openai.api_server",
            *container["args"],
            f"--host={self.host}",
            f"--port={self.port}",
        ]
        self.process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    async def start(self, stack: AsyncExitStack) -> None:
        with self.log.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                PYTHON, *self._command, env=self._environment, stdout=log, stderr=log, start_new_session=True
            )
        stack.push_async_callback(self.kill)

    async def kill(self) -> None:
        """Kill it and its workers."""
        if self.process is not None and self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()

    async def healthy(self, http: aiohttp.ClientSession) -> bool:
        assert self.process is not None and self.process.returncode is None, self.log.read_text()[-3000:]
        try:
            async with http.get(f"{self.url}/health") as response:
                return response.status == 200
        except aiohttp.ClientConnectorError:
            return False

    async def sum(self, http: aiohttp.ClientSession, name: str) -> float:
        async with http.get(f"{self.url}/metrics") as response:
            page = await response.text()
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))

    def pod(self, port: int, *, prefills: bool) -> Pod:
        engine = engine_from(self.annotations["pagefleet.io/engine"])
        return Pod(
            self.host, self.host, "team", "chat", STABLE, f"{self.host}:{port}", engine=engine, prefills=prefills
        )


@asynccontextmanager
async def split(folder: Path) -> AsyncIterator[tuple[Fleet, VLLM, VLLM]]:
    model = folder / "tiny"
    maker = await asyncio.create_subprocess_exec(interpreter(), "-c", MAKE_MODEL, str(model))
    assert await maker.wait() == 0
    made = child(model)
    prefill = VLLM("prefill", prefill_deployment(made, 1), folder)
    decode = VLLM("decode", deployment(made, 1), folder)
    async with running() as fleet:
        fleet.serve((STABLE, 100))
        for engine in (prefill, decode):
            await engine.start(fleet.stack)
        for engine in (prefill, decode):
            await until(lambda engine=engine: engine.healthy(fleet.http), START_SECONDS)  # type: ignore[misc]
        settings = Settings(STABLE, decode.port, 60.0, prefill_port=prefill.port, engine_host=decode.host)
        port = await fleet.stack.enter_async_context(listening(InTurn(settings), decode.host, 0))
        fleet.state.replace_pods([decode.pod(port, prefills=False), prefill.pod(prefill.port, prefills=True)])
        await until(lambda: bool(fleet.serving()))
        yield fleet, prefill, decode


async def answer(http: aiohttp.ClientSession, url: str, **body: Any) -> tuple[int, str, str]:
    """Return the status, the text and the outcome of the prefill leg."""
    fields = {"model": "smol", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "stream": True, **body}
    async with http.post(f"{url}/v1/completions", json=fields) as response:
        events = [json.loads(line[6:]) async for line in response.content if line.startswith(b"data: {")]
        text = "".join(one["choices"][0]["text"] for one in events if one["choices"])
        return response.status, text, response.headers.get(PREFILLED_HEADER, "")


async def test_two_engines_give_each_other_their_pages(tmp_path: Path) -> None:
    async with split(tmp_path) as (fleet, prefill, decode):
        http, gateway = fleet.http, f"{fleet.url}/team/chat"
        status, text, outcome = await answer(http, gateway, prompt=PROMPT)
        assert (status, outcome) == (200, "remote") and text
        assert await decode.sum(http, "vllm:external_prefix_cache_hits_total") >= len(PROMPT) - 16
        assert await prefill.sum(http, "vllm:prompt_tokens_total") >= len(PROMPT)
        assert (await answer(http, prefill.url, prompt=PROMPT))[1] == text, (
            "an engine that computes it answers the same"
        )
        chat = {
            "model": "smol",
            "messages": [{"role": "user", "content": "Another document. " * 60}],
            "max_completion_tokens": 16,
        }
        async with http.post(f"{gateway}/v1/chat/completions", json={**chat, "min_tokens": 4}) as response:
            assert (response.status, response.headers[PREFILLED_HEADER]) == (200, "remote")
            assert (await response.json())["usage"]["completion_tokens"] >= 4

        # The prefill engine dies with pages that a decode leg was told of: the decode engine computes the prompt.
        other = "A prompt whose pages are lost. " * 40
        asked = {"model": "smol", "prompt": other, "max_tokens": 1, "kv_transfer_params": dict(REMOTE_DECODE)}
        async with http.post(f"{prefill.url}/v1/completions", json=asked) as response:
            params = (await response.json())["kv_transfer_params"]
        await prefill.kill()
        async with asyncio.timeout(120):
            status, text, _ = await answer(http, decode.url, prompt=other, kv_transfer_params=params)
        assert status == 200 and text
        status, text, outcome = await answer(http, gateway, prompt="And the gateway goes on. " * 40)
        assert (status, outcome) == (200, "unreached") and text
