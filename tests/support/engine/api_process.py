"""Starts the real `pagefleet-engine` on a tiny random Llama made here. The tests of the engine's API share this."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

import openai

NAME = "tiny"
TIMEOUT_SECONDS = 60.0
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Tokens(Enum):
    """The tokens of a model: single printable characters, or single bytes as GPT-2 or as SentencePiece writes them."""

    CHARACTERS = "characters"
    BYTE_LEVEL = "byte level"
    BYTE_FALLBACK = "byte fallback"

    def texts(self) -> list[str]:
        from pagefleet_engine.model.text.byte_level import byte_values

        match self:
            case Tokens.CHARACTERS:
                return [chr(code) for code in range(33, 127)] + ["Ġ", "Ċ"]
            case Tokens.BYTE_LEVEL:
                return sorted(byte_values())
            case Tokens.BYTE_FALLBACK:
                return [*(f"<0x{byte:02X}>" for byte in range(256)), *map(chr, range(33, 127)), SPACE]


def make_model(folder: Path, tokens: Tokens = Tokens.CHARACTERS) -> str:
    """A two-layer Llama with random weights. Returns its URI."""
    import torch
    from safetensors.torch import save_file

    vocabulary = {token: index for index, token in enumerate([*SPECIAL, *tokens.texts()])}
    hidden, inner, heads, kv_heads, layers = 64, 128, 4, 2, 2
    torch.manual_seed(7)

    def random(*shape: int) -> Any:
        return torch.randn(*shape) * 0.3

    weights = {
        "model.embed_tokens.weight": random(len(vocabulary), hidden) * 3,
        "model.norm.weight": torch.ones(hidden),
    }
    weights["lm_head.weight"] = random(len(vocabulary), hidden)
    for layer in range(layers):
        name = f"model.layers.{layer}."
        weights |= {
            f"{name}self_attn.q_proj.weight": random(hidden, hidden),
            f"{name}self_attn.k_proj.weight": random(hidden // heads * kv_heads, hidden),
            f"{name}self_attn.v_proj.weight": random(hidden // heads * kv_heads, hidden),
            f"{name}self_attn.o_proj.weight": random(hidden, hidden),
            f"{name}mlp.gate_proj.weight": random(inner, hidden),
            f"{name}mlp.up_proj.weight": random(inner, hidden),
            f"{name}mlp.down_proj.weight": random(hidden, inner),
            f"{name}input_layernorm.weight": torch.ones(hidden),
            f"{name}post_attention_layernorm.weight": torch.ones(hidden),
        }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors")
    config = {
        "model_type": "llama", "vocab_size": len(vocabulary), "hidden_size": hidden, "intermediate_size": inner,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 32768, "rope_theta": 10000.0, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps(_tokenizer(vocabulary, tokens)))
    settings = {"chat_template": TEMPLATE, "bos_token": SPECIAL[0], "eos_token": SPECIAL[2]}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return f"file://{folder}"


def make_adapter(folder: Path) -> Path:
    """A LoRA adapter of that model that changes its answers. Returns its folder."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(11)
    tensors = {}
    for layer in range(2):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        tensors[f"{name}.lora_A.weight"] = torch.randn(4, 64)
        tensors[f"{name}.lora_B.weight"] = torch.randn(64, 4)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]})
    )
    return folder


def _tokenizer(vocabulary: dict[str, int], tokens: Tokens) -> dict[str, Any]:
    added = [
        {"id": vocabulary[token], "content": token, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False, "special": True}
        for token in SPECIAL
    ]  # fmt: skip
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    fallback = tokens is Tokens.BYTE_FALLBACK
    space = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    spaces_back = {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    joined = {"type": "Sequence", "decoders": [spaces_back, {"type": "ByteFallback"}, {"type": "Fuse"}]}
    return {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
        "normalizer": space if fallback else None, "pre_tokenizer": None if fallback else byte_level,
        "post_processor": None, "decoder": joined if fallback else byte_level,
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": fallback, "ignore_merges": False,
                  "vocab": vocabulary, "merges": []},
    }  # fmt: skip


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)["error"]
        return document


@dataclass
class Serving:
    """One running engine: its API process, and where it listens."""

    process: subprocess.Popen[str]
    port: int
    termination_log: Path
    replies: list[Reply] = field(default_factory=list)

    def client(self, key: str = "none") -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key=key, max_retries=0, timeout=TIMEOUT_SECONDS
        )

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_SECONDS)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            response = connection.getresponse()
            return Reply(response.status, {k.lower(): v for k, v in response.getheaders()}, response.read())
        finally:
            connection.close()

    def post(self, path: str, document: Any) -> Reply:
        return self.ask("POST", path, json.dumps(document).encode(), {"Content-Type": "application/json"})

    def answer(self, path: str, document: Any) -> dict[str, Any]:
        """The JSON of a POST that succeeds. Raises AssertionError with the error otherwise."""
        reply = self.post(path, document)
        assert reply.status == 200, reply.body
        made: dict[str, Any] = json.loads(reply.body)
        return made

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's samples that carry these labels."""
        total = 0.0
        for line in self.ask("GET", "/metrics").body.decode().splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match and match[1] == name and all(f'{k}="{v}"' in (match[2] or "") for k, v in labels.items()):
                total += float(match[3])
        return total

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return int(children[0])

    def ready(self) -> bool:
        try:
            return self.ask("GET", "/ready").status == 200
        except OSError:
            return False

    def open_stream(self, **parameters: Any) -> socket.socket:
        """Open a raw connection and send a streaming request on it; the caller reads the answer."""
        body = json.dumps({"model": NAME, "prompt": "go", "ignore_eos": True, "stream": True, **parameters}).encode()
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=TIMEOUT_SECONDS)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        return connection


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition. Raises TimeoutError after TIMEOUT_SECONDS."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(what)
        time.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command(uri: str, port: int, *flags: str, first: str = "") -> list[str]:
    """`first`: Python that runs before the engine."""
    start = [sys.executable, "-c", f"{first}\nfrom pagefleet_engine.main import run; run()", "serve", f"--model={uri}"]
    return [*start, f"--served-model-name={NAME}", f"--port={port}", *flags]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def serving(
    uri: str, log: Path, *flags: str, extra: dict[str, str] | None = None, first: str = ""
) -> Iterator[Serving]:
    """Run a ready engine on a free port, with `extra` in its environment; kill it at the end if it still runs."""
    port, output = free_port(), log.with_suffix(".out")
    environment = {**os.environ, "PAGEFLEET_TERMINATION_LOG": str(log), "OMP_NUM_THREADS": "1", **(extra or {})}
    with output.open("w") as out:
        process = subprocess.Popen(
            command(uri, port, "--num-pages=2048", *flags, first=first),
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
    served = Serving(process, port, log)
    try:
        until(lambda: process.poll() is not None or served.ready(), "the engine did not become ready")
        if process.returncode is not None:
            raise RuntimeError(f"the engine ended with {process.returncode}: {output.read_text()}")
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
