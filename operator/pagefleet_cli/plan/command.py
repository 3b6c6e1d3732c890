"""`pagefleet plan`: the memory that a model needs and the users that fit. Asks no cluster and fetches nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from pagefleet_cli.base import options
from pagefleet_cli.base.errors import CommandError, readable_errors
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import show
from pagefleet_cli.plan.accelerators import GB, TABLE, TERA, Accelerator, accelerator
from pagefleet_cli.plan.memory import Load
from pagefleet_cli.plan.report import Request, document, plan, table
from pagefleet_cli.plan.shape import Shape, checked, from_sizes
from pagefleet_cli.plan.source import read
from pagefleet_cli.plan.spec_block import block
from pagefleet_contract.quantity import amount, seconds

LARGEST = 1e12  # of a rate, of tokens, GB/s or TFLOP/s: no product of them is more than a float can hold
UNKNOWN_CONTEXT, MAX_CONTEXT = 4096, 8192  # when --context-length is not given


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
    typer.Option(
        "--accelerator", help="Name of the accelerator; H100 without --memory.", autocompletion=complete_accelerator
    ),
]


def plan_command(
    model: Annotated[
        str | None, typer.Argument(help="Folder, config.json, .gguf file, hf:// or python:// URI.")
    ] = None,
    layers: Annotated[
        int | None, typer.Option(help="Number of layers. With the next six options it replaces MODEL.")
    ] = None,
    heads: Annotated[int | None, typer.Option(help="Query heads.")] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads; overrides the number of MODEL.")] = None,
    head_dim: Annotated[int | None, typer.Option(help="Elements of a head; hidden / heads when omitted.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Hidden size.")] = None,
    vocab: Annotated[int, typer.Option(help="Tokens of the vocabulary.")] = 128_256,
    params: Annotated[str | None, typer.Option(help="Total number of parameters: 8e9, 8B or 8.03B.")] = None,
    weights: Annotated[Weights, typer.Option(help="Type of the weights; auto: that of the files.")] = Weights.AUTO,
    kv: Annotated[Cache, typer.Option("--kv-cache-dtype", help="Type of the keys and values.")] = Cache.BF16,
    card: Named = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--accelerators",
            min=1,
            help="Accelerators per replica; the fewest that fit without much waste when omitted.",
        ),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory of one accelerator, such as 80Gi; that of the datasheet when omitted.")
    ] = None,
    bandwidth: Annotated[float | None, typer.Option(min=1, help="Memory bandwidth of one accelerator in GB/s.")] = None,
    tflops: Annotated[
        float | None,
        typer.Option(min=0.01, help="Arithmetic of one accelerator in TFLOP/s, 16 bits; for --input-tokens."),
    ] = None,
    fraction: Annotated[
        float, typer.Option("--memory-fraction", min=0.05, max=1, help="Share of the memory to use.")
    ] = 0.9,
    context_length: Annotated[
        int | None, typer.Option("--context-length", min=1, help="Longest context of one user, in tokens.")
    ] = None,
    mean: Annotated[
        int | None,
        typer.Option(
            "--mean-length",
            min=1,
            help="Mean context of a user, in tokens; half of the longest when omitted, and all of --shared-tokens.",
        ),
    ] = None,
    shared: Annotated[
        int,
        typer.Option(
            "--shared-tokens",
            min=0,
            help="Tokens at the beginning of every context that all users share: held once, with prefix caching.",
        ),
    ] = 0,
    page: Annotated[int, typer.Option("--page-size", min=1, help="Tokens of a KV page.")] = 16,
    users: Annotated[
        int | None, typer.Option(min=1, help="Users at the same time: computes the replicas for them.")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--requests-per-second", min=0, help="Request rate: computes the replicas for it.")
    ] = None,
    prompt: Annotated[
        float,
        typer.Option(
            "--input-tokens",
            min=0,
            help="Mean tokens of a prompt that are computed, cached ones left out; 0: not counted.",
        ),
    ] = 0,
    answer: Annotated[float, typer.Option("--output-tokens", min=1, help="Mean tokens of an answer.")] = 256,
    tpot: Annotated[str | None, typer.Option(help="Longest time per token, such as 50ms; it limits the batch.")] = None,
    efficiency: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of the bandwidth, and of the arithmetic, that is reached; measure it with `pagefleet bench`.",
        ),
    ] = 1.0,
    as_spec: Annotated[
        bool,
        typer.Option(
            "--spec",
            help="Print the plan as a patch with spec.capacityPlan, which the operator compares with what it measures.",
        ),
    ] = False,
    output: options.Format = Output.TABLE,
) -> None:
    """Plan the capacity for a model: KV bytes per token, KV pages, users per accelerator, accelerators needed."""
    with readable_errors():
        shape, stored = _shape(model, layers, heads, kv_heads, head_dim, hidden, vocab, params)
        given = (("requests-per-second", rate), ("input-tokens", prompt), ("output-tokens", answer), ("users", users))
        for name, number in (*given, ("bandwidth", bandwidth), ("tflops", tflops)):
            if number is not None and not number <= LARGEST:
                raise CommandError(f"--{name} must be a number, at most {LARGEST:g}, not {number}")
        longest = context_length or min(shape.longest or UNKNOWN_CONTEXT, MAX_CONTEXT)
        if shared >= longest:
            raise CommandError(f"--shared-tokens must be below --context-length ({longest}), not {shared}")
        if mean is not None and mean > longest:
            raise CommandError(f"--mean-length must not be above --context-length ({longest}), but is {mean}")
        if mean is not None and mean < shared:
            raise CommandError(
                f"--mean-length counts --shared-tokens ({shared}) too: it must not be below, but is {mean}"
            )
        request = Request(
            weights=_precision(weights, shape, stored),
            computed=stored if weights is Weights.AUTO else weights.value,
            kv=kv.value,
            load=Load(longest, mean or shared + max(1, (longest - shared) // 2), page, shared, prompt, answer),
            fraction=fraction,
            accelerators=count,
            users=users,
            rate=rate,
            answer=answer,
            tpot=_value("--tpot", tpot, seconds),
            efficiency=efficiency,
        )
        result = plan(shape, _card(card, memory, bandwidth, tflops), request)
        written = block(result) if as_spec else document(result)
    if as_spec and output is not Output.JSON:
        output = Output.YAML
    show(output, written, lambda: [table(result)])


def _shape(
    model: str | None, layers: int | None, heads: int | None, kv_heads: int | None, head_dim: int | None,
    hidden: int | None, vocab: int, params: str | None,
) -> tuple[Shape, str | None]:  # fmt: skip
    if model is not None:
        if any(value is not None for value in (layers, heads, head_dim, hidden, params)):
            raise CommandError(
                "give MODEL or its sizes (--layers --heads --hidden --params), not both; --kv-heads corrects MODEL"
            )
        shape, stored = read(model)
        corrected = replace(shape, kv_heads=kv_heads, warnings=()) if kv_heads else shape
        return checked(corrected), stored
    if kv_heads is None and heads is not None:
        raise CommandError(
            "--kv-heads is missing. It is num_key_value_heads of config.json, not the number of query heads: "
            "with query heads the KV cache would seem several times larger than it is"
        )
    given = {"--layers": layers, "--heads": heads, "--kv-heads": kv_heads, "--hidden": hidden, "--params": params}
    missing = [name for name, value in given.items() if value is None]
    if layers is None or heads is None or kv_heads is None or hidden is None or params is None:
        raise CommandError(f"no model is named: give MODEL, or its sizes: {' '.join(missing)} missing")
    if min(layers, heads, kv_heads, hidden, vocab) < 1:
        raise CommandError("--layers, --heads, --kv-heads, --hidden and --vocab must be at least 1")
    return from_sizes(layers, heads, kv_heads, head_dim or hidden // heads, hidden, vocab, _parameters(params)), "bf16"


def _precision(weights: Weights, shape: Shape, stored: str | None) -> str:
    if weights is not Weights.AUTO:
        return weights.value
    if shape.stored is not None:
        return "stored"
    if stored is None:
        raise CommandError(
            "config.json's quantization_config is unknown, and there are no weight files to measure: give --weights"
        )
    return stored


def _parameters(text: str) -> int:
    scale = {"B": 10**9, "M": 10**6, "T": 10**12}.get(text[-1:].upper(), 1)
    try:
        value = round(float(text if scale == 1 else text[:-1]) * scale)
    except (ValueError, OverflowError) as error:
        raise CommandError(f"--params: {text!r} is not a number such as 8e9 or 8.03B") from error
    if not 0 < value < 10**15:
        raise CommandError(f"--params: {text!r} must be above 0")
    return value


def _card(name: str | None, memory: str | None, bandwidth: float | None, tflops: float | None) -> Accelerator:
    """The named one with what the command line knows better; without a name one that has only what is given."""
    size = _value("--memory", memory, amount)
    if size is not None and size < 1:
        raise CommandError("--memory must be at least one byte")
    if name is None and size is not None:
        card = Accelerator(f"accelerator of {memory}", int(size), None, fp8=True)
    else:
        card = accelerator(name or "H100")
        card = card if size is None else replace(card, name=f"{card.name} ({memory})", memory=int(size))
    card = card if bandwidth is None else replace(card, bandwidth=bandwidth * GB)
    return card if tflops is None else replace(card, flops=tflops * TERA)


def _value(name: str, text: str | None, parse: Callable[[str], float]) -> float | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        raise CommandError(f"{name}: {error}") from error
