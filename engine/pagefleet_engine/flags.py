"""The flags of `pagefleet-engine serve`: one table with type, bounds, default and help of each. The fields of an InferenceService
behind them are in pagefleet_contract.engine_options.

argparse (main.py), the checks by device (device_flags.py) and the test of docs/reference/contract/engine.md read it. A
flag whose name is that of a field of EngineConfig fills this field. Pure: no torch.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from pagefleet_contract.engine_options import (
    ADAPTER_NAME,
    BATCH_SIZES,
    MAX_ANSWERS,
    MAX_GPUS_PER_NODE,
    MAX_NODES,
    PAGE_SIZES,
    SPECULATION_METHODS,
)
from pagefleet_contract.names import ENGINE_PORT
from pagefleet_engine.api.base.auth import VARIABLE
from pagefleet_engine.api.parsing.reasoning import Reasoning
from pagefleet_engine.api.parsing.registry import Style
from pagefleet_engine.api.planning.limits import Limits
from pagefleet_engine.core.requests import Batching, EngineConfig, KVEventsConfig, Policy
from pagefleet_kernels.compile import KINDS

MAX_RANKS = MAX_NODES * MAX_GPUS_PER_NODE
UNITS = {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40}
Read = Callable[[str], Any]


class Kind(StrEnum):
    """The form of a flag: how often it may come, and its values: `EXTEND` takes several values at once, `REPEAT` one each time."""

    VALUE = "value"
    SWITCH = "switch"
    EXTEND = "extend"
    REPEAT = "repeat"


@dataclass(frozen=True)
class Flag:
    """`read` turns the text into a value, or raises ArgumentTypeError or ValueError.

    devices: the values that go with each device, where these differ; their union in order is what the flag takes.
    defaults: the default of each device, where these differ.
    """

    name: str
    help: str | None = None
    read: Read = str
    default: Any = None
    choices: tuple[Any, ...] = ()
    metavar: str | None = None
    kind: Kind = Kind.VALUE
    required: bool = False
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    defaults: Mapping[str, int] = field(default_factory=dict)

    @property
    def dest(self) -> str:
        """Its attribute of argparse's namespace."""
        return self.name.removeprefix("--").replace("-", "_")

    @property
    def values(self) -> tuple[Any, ...]:
        """All values that it takes on some device; empty: `read` decides."""
        return self.choices or tuple(dict.fromkeys(value for allowed in self.devices.values() for value in allowed))

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        match self.kind:
            case Kind.SWITCH:
                parser.add_argument(self.name, action="store_true", help=self.help)
                return
            case Kind.EXTEND:
                more: dict[str, Any] = {"action": "extend", "nargs": "+"}
            case Kind.REPEAT:
                more = {"action": "append"}
            case Kind.VALUE:
                more = {}
        if self.values:
            more["choices"] = self.values
        default = list(self.default) if self.kind is Kind.REPEAT else self.default
        parser.add_argument(
            self.name, type=self.read, default=default, required=self.required, metavar=self.metavar,
            help=self.help, **more,
        )  # fmt: skip


def positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def up_to(most: int) -> Read:
    """A whole number from 1 to `most`."""

    def read(text: str) -> int:
        value = int(text)
        if not 1 <= value <= most:
            raise argparse.ArgumentTypeError(f"must be 1 to {most}, not {value}")
        return value

    return read


def port(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, not {value}")
    return value


def seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0, not {text}")
    return value


def fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {value}")
    return value


def share(text: str) -> float:
    value = float(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"must be 0 to 1, not {text}")
    return value


def size(text: str) -> int:
    """Bytes, with a binary unit or without."""
    match = re.fullmatch(r"(\d+)(Ki|Mi|Gi|Ti|)", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"must be bytes such as 17179869184 or 16Gi, not {text!r}")
    return int(match[1]) * UNITS[match[2]]


def adapter(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path or not re.fullmatch(ADAPTER_NAME, name):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, not {text!r}")
    return name, path


def kv_events(text: str) -> KVEventsConfig:
    try:
        return msgspec.json.decode(text, type=KVEventsConfig)
    except msgspec.DecodeError as error:
        raise argparse.ArgumentTypeError(
            f"must be JSON with vLLM's keys ({', '.join(KVEventsConfig.__struct_fields__)}): {error}"
        ) from error


FLAGS: tuple[Flag, ...] = (
    # The model.
    Flag("--model", "model URI: python://, file://, hf://", required=True),
    Flag("--served-model-name", "the names by which clients call it", kind=Kind.EXTEND, required=True, metavar="NAME"),
    Flag(
        "--model-impl", "whose code computes the model; auto: transformers' where the engine has no family for it",
        default=EngineConfig.model_impl,
        devices={"cpu": ("auto", "pagefleet", "transformers"), "cuda": ("auto", "pagefleet")},
    ),
    Flag("--max-model-len", "prompt and output tokens together", positive),
    Flag(
        "--quantization", "of a model whose files carry none", default=EngineConfig.quantization,
        devices={"cpu": ("none", "int8"), "cuda": ("none", "fp8", "awq")},
    ),
    Flag("--chat-template", "Jinja, instead of the model's own", Path, metavar="FILE"),
    Flag(
        "--generation-config",
        "the sampling values of requests that do not name them; auto: those of the model's generation_config.json",
        choices=("auto", "vllm"), default="auto",
    ),
    Flag("--tool-call-parser", choices=tuple(style.value for style in Style), default=Style.HERMES.value),
    Flag(
        "--reasoning-parser", "how the model writes its reasoning; auto: as its chat template shows",
        choices=tuple(reasoning.value for reasoning in Reasoning), default=Reasoning.AUTO.value,
    ),
    Flag(
        "--speculation", "draft tokens and check several in one step, where that pays; ngram on the CPU, none on GPUs",
        choices=SPECULATION_METHODS,
    ),
    Flag("--speculation-tokens", "the most draft tokens of an answer in one step; 4", positive),
    Flag("--speculation-model", "the draft model, or the EAGLE-3 head", metavar="URI"),
    Flag("--lora-adapter", "repeatable", adapter, default=(), kind=Kind.REPEAT, metavar="NAME=PATH"),
    Flag("--max-adapters", None, positive, EngineConfig.max_adapters),
    Flag("--allow-runtime-adapters", "serve POST /v1/load_lora_adapter and /v1/unload_lora_adapter", kind=Kind.SWITCH),
    Flag("--adapter-root", "the folder from which these endpoints load", Path, metavar="FOLDER"),
    # The engine.
    Flag("--page-size", "tokens per KV page", int, EngineConfig.page_size, choices=PAGE_SIZES),
    Flag("--num-pages", "KV pages; sized from memory when not given", positive),
    Flag("--kv-memory-fraction", None, fraction, EngineConfig.kv_memory_fraction),
    Flag(
        "--kv-cache-dtype", default=EngineConfig.kv_cache_dtype,
        devices={
            "cpu": ("auto", "float32", "float16"), "cuda": ("auto", "float32", "float16", "bfloat16", "fp8"),
        },
    ),
    Flag(
        "--max-num-seqs", "most sequences in one batch; 64, on a GPU 256", positive,
        defaults={device: sizes.sequences for device, sizes in BATCH_SIZES.items()},
    ),
    Flag(
        "--max-num-batched-tokens", "token budget of one step; 256, on a GPU 8192, or what the sequences or a chunk need", positive,
        defaults={device: sizes.tokens for device, sizes in BATCH_SIZES.items()},
    ),
    Flag(
        "--max-chunk-tokens",
        "of one prompt in one step; when not given 128 of one that has more than 512 tokens, on a GPU 2048", positive,
        defaults={device: sizes.chunk_tokens for device, sizes in BATCH_SIZES.items()},
    ),
    Flag("--batching", choices=tuple(mode.value for mode in Batching), default=Batching.CONTINUOUS.value),
    Flag("--no-prefix-caching", kind=Kind.SWITCH),
    Flag(
        "--max-pinned-pages-share", "of the KV pages, 0 to 1; less where a request of --max-model-len has no room beside them",
        share, EngineConfig.max_pinned_pages_share,
    ),
    Flag(
        "--kv-events-config", "JSON with vLLM's keys: publish what the prefix cache takes in and gives up, over ZeroMQ",
        kv_events, metavar="JSON",
    ),
    Flag("--scheduling-policy", choices=tuple(policy.value for policy in Policy), default=Policy.PRIORITY.value),
    Flag("--kernels", choices=KINDS, default=EngineConfig.kernels),
    # The device.
    Flag(
        "--device", "auto: cuda where there is a GPU and torch is built for it", choices=("auto", "cpu", "cuda"),
        default="auto",
    ),
    Flag(
        "--tensor-parallel-size", f"GPUs that share the model, 1..{MAX_GPUS_PER_NODE} on each node", up_to(MAX_RANKS),
        EngineConfig.tensor_parallel_size, metavar="N",
    ),
    Flag(
        "--nnodes", "machines that the GPUs are on, equally many on each", up_to(MAX_NODES), EngineConfig.nodes,
        metavar="N",
    ),
    Flag("--node-rank", "which of them this is; 0 serves, the others compute", int, 0, metavar="K"),
    Flag("--master-addr", "where the others find the first", default="", metavar="HOST"),
    Flag("--master-port", None, int, EngineConfig.master_port, metavar="PORT"),
    Flag(
        "--kv-offload-memory", "of the host for evicted KV pages; 16Gi", size, EngineConfig.kv_offload_memory,
        metavar="BYTES",
    ),
    # The server.
    Flag("--host", "where to listen; 0.0.0.0 for every IPv4 address, :: for IPv6 too", default="127.0.0.1"),
    Flag("--port", None, port, ENGINE_PORT),
    Flag("--api-key-file", f"one key a line; besides those of {VARIABLE}", Path, metavar="FILE"),
    Flag("--max-prompt-tokens", None, positive),
    Flag("--max-output-tokens", None, positive),
    Flag("--max-queued-requests", None, positive, 256),
    Flag("--max-queued-tokens", "prompt tokens without an answer yet", positive),
    Flag("--max-n", "answers to one prompt", positive, MAX_ANSWERS),
    Flag("--max-pin-tokens", "of one pinned prompt; as many as may be pinned in all", positive),
    Flag("--max-pin-seconds", "the longest time of a pin", positive, Limits.pin_seconds),
    Flag("--trust-request-chat-template", "let requests bring a chat_template", kind=Kind.SWITCH),
    Flag("--write-timeout", "until a client that reads nothing is cut", seconds, 30.0, metavar="SECONDS"),
    Flag("--drain-timeout", None, seconds, 90.0, metavar="SECONDS"),
)  # fmt: skip
BY_NAME: Mapping[str, Flag] = {flag.name: flag for flag in FLAGS}
