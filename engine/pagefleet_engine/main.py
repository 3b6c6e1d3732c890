"""`pagefleet-engine serve`: the command line. Checks flags and their combinations, then runs the API process.

Never loads a model: that is the engine process's work, which the API process starts.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from pagefleet_engine import device_flags
from pagefleet_engine.api.base.auth import VARIABLE, Keys
from pagefleet_engine.api.base.logs import explain
from pagefleet_engine.api.constrained.tools import Style
from pagefleet_engine.api.parameters.generation import MOST_N
from pagefleet_engine.api.parameters.others import ADAPTER_NAME
from pagefleet_engine.api.planning.limits import Limits, Rules
from pagefleet_engine.api.server import ServeConfig, Server
from pagefleet_engine.core.requests import Batching, EngineConfig, Policy, Speculation

QUANTIZATIONS = ("none", "int8", "fp8", "awq")
PAGE_SIZES = (16, 32, 64, 128, 256)
CHUNK_HELP = "of one prompt in one step; when not given 128 of one that has more than 512 tokens, on a GPU 2048"
KV_CACHE_TYPES = ("auto", "float32", "float16", "bfloat16", "fp8")
POLICIES = tuple(policy.value for policy in Policy)
KERNELS = ("auto", "native", "reference")
SPECULATIONS = ("ngram", "draft", "none")
MOST_SPECULATED = 16


class Parser(argparse.ArgumentParser):
    """Raises ValueError where argparse prints its usage and exits.

    Abbreviated flags are refused: the operator checks the flags of spec.engine.args by their full names.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def parser() -> Parser:
    root = Parser(prog="pagefleet-engine", description="Pagefleet's paged-attention engine")
    commands = root.add_subparsers(dest="command", required=True, parser_class=Parser)
    serve = commands.add_parser("serve", help="serve one model over HTTP")
    _model_flags(serve)
    _engine_flags(serve)
    _server_flags(serve)
    return root


def _model_flags(serve: argparse.ArgumentParser) -> None:
    add = serve.add_argument
    add("--model", required=True, help="model URI: python://, file://, hf://")
    add("--served-model-name", required=True, action="extend", nargs="+", metavar="NAME", help="what clients call it")
    add("--max-model-len", type=_positive, default=None, help="prompt and output tokens together")
    add("--quantization", choices=QUANTIZATIONS, default="none", help="of a model whose files carry none")
    add("--chat-template", type=Path, default=None, metavar="FILE", help="Jinja, instead of the model's own")
    add("--tool-call-parser", choices=[style.value for style in Style], default=Style.HERMES.value)
    add(
        "--speculation",
        choices=SPECULATIONS,
        default=None,
        help="guess tokens and check several in one step, where that pays; ngram on the CPU, none on GPUs",
    )
    add("--speculation-tokens", type=_positive, default=None, help="most guesses of one step; 4")
    add("--speculation-model", default=None, metavar="URI", help="the draft model")
    add("--lora-adapter", action="append", default=[], type=_adapter, metavar="NAME=PATH", help="repeatable")
    add("--max-adapters", type=_positive, default=16)
    add("--allow-runtime-adapters", action="store_true", help="POST /v1/load_lora_adapter and /v1/unload_lora_adapter")
    add("--adapter-root", type=Path, default=None, metavar="FOLDER", help="where those may lie")


def _engine_flags(serve: argparse.ArgumentParser) -> None:
    add = serve.add_argument
    add("--page-size", type=int, choices=PAGE_SIZES, default=16, help="tokens per KV page")
    add("--num-pages", type=_positive, default=None, help="KV pages; sized from memory when not given")
    add("--kv-memory-fraction", type=_fraction, default=0.9)
    add("--kv-cache-dtype", choices=KV_CACHE_TYPES, default="auto")
    add("--max-num-seqs", type=_positive, default=None, help="most sequences in one batch; 64, on a GPU 256")
    add("--max-num-batched-tokens", type=_positive, default=None, help="token budget of one step; 512, on a GPU 8192")
    add("--max-chunk-tokens", type=_positive, default=None, help=CHUNK_HELP)
    add("--batching", choices=[mode.value for mode in Batching], default=Batching.CONTINUOUS.value)
    add("--no-prefix-caching", action="store_true")
    add("--scheduling-policy", choices=POLICIES, default="priority")
    add("--kernels", choices=KERNELS, default="auto")
    device_flags.add_flags(serve)


def _server_flags(serve: argparse.ArgumentParser) -> None:
    add = serve.add_argument
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=8000)
    add("--api-key-file", type=Path, default=None, metavar="FILE", help=f"one key a line; besides those of {VARIABLE}")
    add("--max-prompt-tokens", type=_positive, default=None)
    add("--max-output-tokens", type=_positive, default=None)
    add("--max-queued-requests", type=_positive, default=256)
    add("--max-queued-tokens", type=_positive, default=None, help="prompt tokens without an answer yet")
    add("--max-n", type=_positive, default=MOST_N, help="answers to one prompt")
    add("--trust-request-chat-template", action="store_true", help="let requests bring a chat_template")
    add(
        "--write-timeout",
        type=_seconds,
        default=30.0,
        metavar="SECONDS",
        help="until a client that reads nothing is cut",
    )
    add("--drain-timeout", type=_seconds, default=90.0, metavar="SECONDS")


def configure(arguments: list[str]) -> ServeConfig:
    """Raises ValueError naming the flags that are wrong, or whose combination is impossible."""
    flags = parser().parse_args(arguments)
    device = device_flags.resolved(flags)
    device_flags.check(flags, device)
    _fill_sizes(flags, device)
    _check_sizes(flags)
    _check_names(flags)
    return ServeConfig(
        engine=EngineConfig(
            model=flags.model,
            quantization=flags.quantization,
            max_model_len=flags.max_model_len,
            page_size=flags.page_size,
            num_pages=flags.num_pages,
            kv_memory_fraction=flags.kv_memory_fraction,
            kv_cache_dtype=flags.kv_cache_dtype,
            max_num_seqs=flags.max_num_seqs,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            max_chunk_tokens=flags.max_chunk_tokens,
            long_prompt_tokens=flags.long_prompt_tokens,
            batching=flags.batching,
            prefix_caching=not flags.no_prefix_caching,
            scheduling_policy=flags.scheduling_policy,
            speculation=_speculation(flags, device),
            adapters=tuple(flags.lora_adapter),
            max_adapters=flags.max_adapters,
            kernels=flags.kernels,
            device=device,
            tensor_parallel_size=flags.tensor_parallel_size,
            kv_offload_memory=flags.kv_offload_memory,
            nodes=flags.nnodes,
            master_port=flags.master_port,
        ),
        node=flags.node_rank,
        master=flags.master_addr,
        served_model_names=tuple(flags.served_model_name),
        host=flags.host,
        port=flags.port,
        limits=Limits(
            flags.max_prompt_tokens,
            flags.max_output_tokens,
            flags.max_queued_requests,
            flags.max_queued_tokens,
            flags.max_n,
        ),
        rules=Rules(
            priorities=flags.scheduling_policy == Policy.PRIORITY,
            request_templates=flags.trust_request_chat_template,
            tool_style=Style(flags.tool_call_parser),
        ),
        keys=_keys(flags.api_key_file),
        drain_timeout=flags.drain_timeout,
        write_timeout=flags.write_timeout,
        chat_template=flags.chat_template,
        adapter_root=flags.adapter_root,
    )


def _fill_sizes(flags: argparse.Namespace, device: str) -> None:
    """What was not given is the device's. A chunk is never more than the budget, and one that was given is every prompt's."""
    seqs, budget, chunk, long = device_flags.SIZES[device]
    flags.long_prompt_tokens = flags.max_chunk_tokens or long
    flags.max_num_seqs = flags.max_num_seqs or seqs
    flags.max_num_batched_tokens = flags.max_num_batched_tokens or budget
    flags.max_chunk_tokens = flags.max_chunk_tokens or min(chunk, flags.max_num_batched_tokens)


def _check_sizes(flags: argparse.Namespace) -> None:
    length = flags.max_model_len
    if length is not None and flags.max_prompt_tokens is not None and flags.max_prompt_tokens >= length:
        raise ValueError(
            f"--max-prompt-tokens {flags.max_prompt_tokens} leaves no room for an answer in --max-model-len {length}"
        )
    if length is not None and flags.max_output_tokens is not None and flags.max_output_tokens > length:
        raise ValueError(f"--max-output-tokens {flags.max_output_tokens} is more than --max-model-len {length}")
    budget = flags.max_num_batched_tokens
    if flags.batching == Batching.CONTINUOUS and budget < flags.max_num_seqs:
        raise ValueError(
            f"--max-num-batched-tokens {budget} is less than --max-num-seqs {flags.max_num_seqs}: "
            "every running sequence takes one token of the budget"
        )
    if flags.max_chunk_tokens is not None and flags.max_chunk_tokens > budget:
        raise ValueError(f"--max-chunk-tokens {flags.max_chunk_tokens} is more than --max-num-batched-tokens {budget}")
    if flags.max_n > MOST_N:
        raise ValueError(f"--max-n {flags.max_n} is more than {MOST_N}")
    if flags.write_timeout <= 0:
        raise ValueError("--write-timeout must be above 0")


def _check_names(flags: argparse.Namespace) -> None:
    names = [*flags.served_model_name, *(name for name, _ in flags.lora_adapter)]
    empty = [name for name in names if not name]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if empty:
        raise ValueError("--served-model-name may not be empty")
    if twice:
        flag = "--lora-adapter" if twice[0] in dict(flags.lora_adapter) else "--served-model-name"
        raise ValueError(f"{flag} {twice[0]!r} is given twice")
    if len(flags.lora_adapter) > flags.max_adapters:
        raise ValueError(
            f"--max-adapters {flags.max_adapters} is less than {len(flags.lora_adapter)} of --lora-adapter"
        )
    if flags.allow_runtime_adapters and flags.adapter_root is None:
        raise ValueError("--allow-runtime-adapters needs --adapter-root")
    if flags.adapter_root is not None and not flags.allow_runtime_adapters:
        raise ValueError("--adapter-root needs --allow-runtime-adapters")
    if flags.adapter_root is not None and not flags.adapter_root.is_dir():
        raise ValueError(f"--adapter-root {flags.adapter_root} is no folder")


def _speculation(flags: argparse.Namespace, device: str) -> Speculation | None:
    """Looking up a sequence's own text costs next to nothing and is switched off where it does not pay."""
    method, tokens, model = flags.speculation, flags.speculation_tokens, flags.speculation_model
    if method in (None, "none") and tokens is not None:
        raise ValueError("--speculation-tokens needs --speculation=ngram or draft")
    if model is not None and method != "draft":
        raise ValueError("--speculation-model needs --speculation=draft")
    if method is None and device == "cpu" and flags.batching == Batching.CONTINUOUS:
        method = "ngram"
    if method in (None, "none"):
        return None
    if method == "draft" and model is None:
        raise ValueError("--speculation=draft needs --speculation-model")
    if tokens is not None and tokens > MOST_SPECULATED:
        raise ValueError(f"--speculation-tokens {tokens} is more than {MOST_SPECULATED}")
    if flags.batching == Batching.STATIC:
        raise ValueError("--speculation needs --batching=continuous")
    return Speculation(method, tokens or Speculation.tokens, model)


def _keys(file: Path | None) -> Keys:
    try:
        return Keys(file, os.environ.get(VARIABLE, ""))
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--api-key-file {file} cannot be read: {error}") from error


def run() -> None:
    import uvloop

    try:
        config = configure(sys.argv[1:])
    except ValueError as error:
        sys.exit(explain("spec.engine.args", str(error)))
    if config.node:
        sys.exit(_node(config))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(config)))


def _node(config: ServeConfig) -> int:
    """One of the other machines: its ranks and nothing else, in this process's place."""
    engine = config.engine
    told = (config.master, engine.master_port, config.node, engine.device, engine.tensor_parallel_size // engine.nodes)
    command = [sys.executable, "-m", "pagefleet_engine.runner.device.ranks.node", *map(str, told)]
    os.execv(command[0], command)  # noqa: S606 - our own interpreter


async def _serve(config: ServeConfig) -> int:
    return await Server(config).run()


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {value}")
    return value


def _port(text: str) -> int:
    value = int(text)
    if not 1 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"must be a port from 1 to 65535, not {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not math.isfinite(value) or value < 0:
        raise argparse.ArgumentTypeError(f"must be a number of seconds from 0, not {text}")
    return value


def _fraction(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"must be above 0 and at most 1, not {value}")
    return value


def _adapter(text: str) -> tuple[str, str]:
    name, separator, path = text.partition("=")
    if not separator or not path or not ADAPTER_NAME.fullmatch(name):
        raise argparse.ArgumentTypeError(f"must be NAME=PATH, not {text!r}")
    return name, path
