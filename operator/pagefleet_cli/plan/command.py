"""`pagefleet plan`: what a model needs and how many users fit. Asks no cluster and fetches nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from pagefleet_cli.base import options
from pagefleet_cli.base.faults import Fault, explained
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import show
from pagefleet_cli.plan.accelerators import GB, TABLE, Accelerator, accelerator
from pagefleet_cli.plan.memory import Load
from pagefleet_cli.plan.report import Wanted, document, plan, table
from pagefleet_cli.plan.shape import Shape, checked, from_sizes
from pagefleet_cli.plan.source import read
from pagefleet_contract.quantity import amount, seconds

UNKNOWN_CONTEXT, MOST_CONTEXT = 4096, 8192  # when --context-length is not given


class Weights(StrEnum):
    AUTO = "auto"
    FLOAT32 = "float32"
    BF16 = "bf16"
    FP8 = "fp8"
    INT8 = "int8"
    AWQ = "awq"


class Cache(StrEnum):
    BF16 = "bf16"
    FLOAT16 = "float16"
    FP8 = "fp8"
    INT8 = "int8"
    FLOAT32 = "float32"


def complete_accelerator(incomplete: str) -> list[str]:
    return [entry.name for entry in TABLE if entry.name.lower().startswith(incomplete.lower())]


Named = Annotated[
    str | None,
    typer.Option("--accelerator", help="By name; H100 without --memory.", autocompletion=complete_accelerator),
]


def plan_command(
    model: Annotated[
        str | None, typer.Argument(help="Folder, config.json, .gguf file, hf:// or python:// URI.")
    ] = None,
    layers: Annotated[int | None, typer.Option(help="Instead of MODEL, with the six below.")] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads; also corrects what MODEL says.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Elements of a head; hidden / heads when omitted.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Hidden size.")] = None,
    vocab: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 128_256,
    params: Annotated[str | None, typer.Option(help="Parameters in all: 8e9, 8B or 8.03B.")] = None,
    weights: Annotated[Weights, typer.Option(help="auto: as the files hold them.")] = Weights.AUTO,
    kv: Annotated[Cache, typer.Option("--kv-cache-dtype", help="Of keys and values.")] = Cache.BF16,
    card: Named = None,
    count: Annotated[
        int | None, typer.Option("--accelerators", min=1, help="Per replica; the fewest that fit.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Of one accelerator, such as 80Gi: instead of its datasheet's.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(min=1, help="GB/s of one accelerator.")] = None,
    fraction: Annotated[float, typer.Option("--memory-fraction", min=0.05, max=1, help="Of memory to use.")] = 0.9,
    context_length: Annotated[
        int | None, typer.Option("--context-length", min=1, help="Tokens of one user at most.")
    ] = None,
    mean: Annotated[
        int | None, typer.Option("--mean-length", min=1, help="Tokens held by a user on average; half.")
    ] = None,
    page: Annotated[int, typer.Option("--page-size", min=1, help="Tokens of a page.")] = 16,
    users: Annotated[int | None, typer.Option(min=1, help="Users at once: how many replicas?")] = None,
    rate: Annotated[float | None, typer.Option("--requests-per-second", min=0, help="How many replicas?")] = None,
    answer: Annotated[float, typer.Option("--output-tokens", min=1, help="Of one answer on average.")] = 256,
    tpot: Annotated[str | None, typer.Option(help="Longest time per token, such as 50ms: limits the batch.")] = None,
    efficiency: Annotated[float, typer.Option(min=0.01, max=1, help="Of the bandwidth; measure with bench.")] = 1.0,
    output: options.Format = Output.TABLE,
) -> None:
    """KV bytes per token, pages, users per accelerator, accelerators needed."""
    with explained():
        shape, held = _shape(model, layers, heads, kv_heads, head_dim, hidden, vocab, params)
        longest = context_length or min(shape.longest or UNKNOWN_CONTEXT, MOST_CONTEXT)
        wanted = Wanted(
            weights=_precision(weights, shape, held),
            kv=kv.value,
            load=Load(longest, mean or max(1, longest // 2), page),
            fraction=fraction,
            accelerators=count,
            users=users,
            rate=rate,
            answer=answer,
            tpot=_value("--tpot", tpot, seconds),
            efficiency=efficiency,
        )
        found = plan(shape, _card(card, memory, bandwidth), wanted)
    show(output, document(found), lambda: [table(found)])


def _shape(
    model: str | None, layers: int | None, heads: int | None, kv_heads: int | None, head_dim: int | None,
    hidden: int | None, vocab: int, params: str | None,
) -> tuple[Shape, str | None]:  # fmt: skip
    if model is not None:
        if any(value is not None for value in (layers, heads, head_dim, hidden, params)):
            raise Fault(
                "give MODEL or its sizes (--layers --heads --hidden --params), not both; --kv-heads corrects MODEL"
            )
        shape, held = read(model)
        corrected = replace(shape, kv_heads=kv_heads, warnings=()) if kv_heads else shape
        return checked(corrected), held
    if kv_heads is None and heads is not None:
        raise Fault(
            "--kv-heads is missing. It is num_key_value_heads of config.json, not the number of query heads: "
            "with query heads the KV cache would seem several times larger than it is"
        )
    given = {"--layers": layers, "--heads": heads, "--kv-heads": kv_heads, "--hidden": hidden, "--params": params}
    missing = [name for name, value in given.items() if value is None]
    if layers is None or heads is None or kv_heads is None or hidden is None or params is None:
        raise Fault(f"which model? Give MODEL, or its sizes: {' '.join(missing)} missing")
    if min(layers, heads, kv_heads, hidden, vocab) < 1:
        raise Fault("--layers, --heads, --kv-heads, --hidden and --vocab must be at least 1")
    return from_sizes(layers, heads, kv_heads, head_dim or hidden // heads, hidden, vocab, _parameters(params)), "bf16"


def _precision(asked: Weights, shape: Shape, held: str | None) -> str:
    if asked is not Weights.AUTO:
        return asked.value
    if shape.stored is not None:
        return "stored"
    if held is None:
        raise Fault(
            "config.json's quantization_config is not known here, and there are no files to weigh: say --weights"
        )
    return held


def _parameters(text: str) -> int:
    scale = {"B": 10**9, "M": 10**6, "T": 10**12}.get(text[-1:].upper(), 1)
    try:
        value = round(float(text if scale == 1 else text[:-1]) * scale)
    except ValueError as error:
        raise Fault(f"--params: {text!r} is not a number such as 8e9 or 8.03B") from error
    if not 0 < value < 10**15:
        raise Fault(f"--params: {text!r} must be above 0")
    return value


def _card(name: str | None, memory: str | None, bandwidth: float | None) -> Accelerator:
    """The named one with what the command line knows better; without a name one that has only what is given."""
    size = _value("--memory", memory, amount)
    if size is not None and size < 1:
        raise Fault("--memory must be at least one byte")
    if name is None and size is not None:
        found = Accelerator(f"accelerator of {memory}", int(size), None, fp8=True)
    else:
        found = accelerator(name or "H100")
        found = found if size is None else replace(found, name=f"{found.name} ({memory})", memory=int(size))
    return found if bandwidth is None else replace(found, bandwidth=bandwidth * GB)


def _value(name: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise Fault(f"{name}: {error}") from error
