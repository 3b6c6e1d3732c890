"""`pagefleet-engine serve`: the command line. Checks flags and their combinations, then runs the API process.

Never loads a model: that is the engine process's work, which the API process starts.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
from typing import Any, NoReturn

from pagefleet_engine.api.completions import Limits
from pagefleet_engine.api.logs import explain
from pagefleet_engine.api.server import ServeConfig, Server
from pagefleet_engine.core.requests import Batching, EngineConfig

QUANTIZATIONS = ("none", "int8")
PAGE_SIZES = (8, 16, 32, 64, 128, 256)


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
    add = serve.add_argument
    add("--model", required=True, help="model URI: python://, file://, hf://")
    add("--served-model-name", required=True, help="what clients call the model")
    add("--host", default="127.0.0.1")
    add("--port", type=_port, default=8000)
    add("--max-model-len", type=_positive, default=None, help="prompt and output tokens together")
    add("--quantization", choices=QUANTIZATIONS, default="none")
    add("--page-size", type=int, choices=PAGE_SIZES, default=16, help="tokens per KV page")
    add("--num-pages", type=_positive, default=None, help="KV pages; sized from memory when not given")
    add("--kv-memory-fraction", type=_fraction, default=0.9)
    add("--max-num-seqs", type=_positive, default=64, help="most sequences in one batch")
    add("--max-num-batched-tokens", type=_positive, default=512, help="token budget of one step")
    add("--batching", choices=[mode.value for mode in Batching], default=Batching.CONTINUOUS.value)
    add("--max-prompt-tokens", type=_positive, default=None)
    add("--max-output-tokens", type=_positive, default=None)
    add("--max-queued-requests", type=_positive, default=256)
    add("--drain-timeout", type=_seconds, default=90.0, metavar="SECONDS")
    return root


def configure(arguments: list[str]) -> ServeConfig:
    """Raises ValueError naming the flags that are wrong, or whose combination is impossible."""
    flags = parser().parse_args(arguments)
    length = flags.max_model_len
    if length is not None and flags.max_prompt_tokens is not None and flags.max_prompt_tokens >= length:
        raise ValueError(
            f"--max-prompt-tokens {flags.max_prompt_tokens} leaves no room for an answer in --max-model-len {length}"
        )
    if length is not None and flags.max_output_tokens is not None and flags.max_output_tokens > length:
        raise ValueError(f"--max-output-tokens {flags.max_output_tokens} is more than --max-model-len {length}")
    if flags.batching == Batching.CONTINUOUS and flags.max_num_batched_tokens < flags.max_num_seqs:
        raise ValueError(
            f"--max-num-batched-tokens {flags.max_num_batched_tokens} is less than "
            f"--max-num-seqs {flags.max_num_seqs}: every running sequence takes one token of the budget"
        )
    return ServeConfig(
        engine=EngineConfig(
            model=flags.model,
            quantization=flags.quantization,
            max_model_len=flags.max_model_len,
            page_size=flags.page_size,
            num_pages=flags.num_pages,
            kv_memory_fraction=flags.kv_memory_fraction,
            max_num_seqs=flags.max_num_seqs,
            max_num_batched_tokens=flags.max_num_batched_tokens,
            batching=flags.batching,
        ),
        served_model_name=flags.served_model_name,
        host=flags.host,
        port=flags.port,
        limits=Limits(flags.max_prompt_tokens, flags.max_output_tokens, flags.max_queued_requests),
        drain_timeout=flags.drain_timeout,
    )


def run() -> None:
    import uvloop

    try:
        config = configure(sys.argv[1:])
    except ValueError as error:
        sys.exit(explain("spec.engine.args", str(error)))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.exit(runner.run(_serve(config)))


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
