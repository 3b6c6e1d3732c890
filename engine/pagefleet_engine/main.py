"""`pagefleet-engine serve`: checks the flags of flags.py and their combinations, then runs the API process.

Never loads a model: that is the work of the engine process, which the API process starts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from pagefleet_contract.engine_options import HEAD, MAX_ANSWERS, MAX_DRAFT_TOKENS
from pagefleet_engine import device_flags
from pagefleet_engine.api.base.auth import VARIABLE, Keys
from pagefleet_engine.api.base.logs import explain
from pagefleet_engine.api.parsing.reasoning import Reasoning
from pagefleet_engine.api.parsing.registry import Style
from pagefleet_engine.api.planning.limits import Limits, Rules
from pagefleet_engine.api.server import ServeConfig, Server
from pagefleet_engine.core.requests import Batching, EngineConfig, Policy, Speculation
from pagefleet_engine.flags import FLAGS

WITH_MODEL = ("draft", HEAD)  # methods of speculation with a model of their own
ENGINE_FIELDS = {field.name for field in fields(EngineConfig)}


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
    for flag in FLAGS:
        flag.add_to(serve)
    return root


def configure(arguments: list[str]) -> ServeConfig:
    """Raises ValueError naming the flags that are wrong, or whose combination is impossible."""
    flags = parser().parse_args(arguments)
    device = device_flags.resolved(flags)
    device_flags.check(flags, device)
    device_flags.fill_sizes(flags, device)
    _check_sizes(flags)
    _check_names(flags)
    same = {name: value for name, value in vars(flags).items() if name in ENGINE_FIELDS}
    others = {
        "device": device, "speculation": _speculation(flags, device), "adapters": tuple(flags.lora_adapter),
        "prefix_caching": not flags.no_prefix_caching, "nodes": flags.nnodes,
    }  # fmt: skip
    return ServeConfig(
        engine=EngineConfig(**{**same, **others}),
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
            flags.max_pin_tokens,
            flags.max_pin_seconds,
        ),
        rules=Rules(
            priorities=flags.scheduling_policy == Policy.PRIORITY,
            request_templates=flags.trust_request_chat_template,
            tool_style=Style(flags.tool_call_parser),
            reasoning=Reasoning(flags.reasoning_parser),
        ),
        keys=_keys(flags.api_key_file),
        drain_timeout=flags.drain_timeout,
        write_timeout=flags.write_timeout,
        chat_template=flags.chat_template,
        generation_config=flags.generation_config,
        adapter_root=flags.adapter_root,
    )


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
    if flags.max_n > MAX_ANSWERS:
        raise ValueError(f"--max-n {flags.max_n} is more than {MAX_ANSWERS}")
    events = flags.kv_events_config
    if events is not None and events.publishes and flags.no_prefix_caching:
        raise ValueError("--kv-events-config publishes the prefix cache, which --no-prefix-caching switches off")
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
        raise ValueError("--speculation-tokens needs --speculation=ngram, draft or eagle3")
    if model is not None and method not in WITH_MODEL:
        raise ValueError("--speculation-model needs --speculation=draft or eagle3")
    if method is None and device == "cpu" and flags.batching == Batching.CONTINUOUS:
        method = "ngram"
    if method in (None, "none"):
        return None
    if method in WITH_MODEL and model is None:
        raise ValueError(f"--speculation={method} needs --speculation-model")
    if tokens is not None and tokens > MAX_DRAFT_TOKENS:
        raise ValueError(f"--speculation-tokens {tokens} is more than {MAX_DRAFT_TOKENS}")
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
    arguments = (
        config.master,
        engine.master_port,
        config.node,
        engine.device,
        engine.tensor_parallel_size // engine.nodes,
    )
    command = [sys.executable, "-m", "pagefleet_engine.runner.device.ranks.node", *map(str, arguments)]
    os.execv(command[0], command)  # noqa: S606 - our own interpreter


async def _serve(config: ServeConfig) -> int:
    return await Server(config).run()
