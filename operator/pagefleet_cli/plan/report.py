"""A plan: everything `pagefleet plan` says about a model on an accelerator, as values and as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagefleet_cli.base.words import binary
from pagefleet_cli.plan import memory
from pagefleet_cli.plan.accelerators import Accelerator
from pagefleet_cli.plan.memory import KV, Load, Replica
from pagefleet_cli.plan.shape import Shape


@dataclass(frozen=True)
class Wanted:
    """What is asked for. `weights`: one of memory.LINEAR, or "stored"; `kv`: one of memory.KV; `fraction` of memory."""

    weights: str
    kv: str
    load: Load
    fraction: float = 0.9
    accelerators: int | None = None
    users: int | None = None
    rate: float | None = None
    answer: float = 256.0
    tpot: float | None = None
    efficiency: float = 1.0


@dataclass(frozen=True)
class Plan:
    """`tokens_one`, `tokens_all`: tokens per second of one user alone and of a replica's batch, None unknown."""

    shape: Shape
    card: Accelerator
    wanted: Wanted
    replica: Replica
    per_token: int
    mistaken: int
    batch: int
    tokens_one: float | None
    tokens_all: float | None
    replicas: int | None


def plan(shape: Shape, card: Accelerator, wanted: Wanted) -> Plan:
    """Raises Fault when nothing fits."""
    element, load = KV[wanted.kv], wanted.load
    weights = memory.weight_bytes(
        shape, "bf16" if wanted.weights == "stored" else wanted.weights, wanted.weights == "stored"
    )
    arguments = (shape, weights, element, card, load)
    count = wanted.accelerators
    found = (
        memory.replica(*arguments, count, wanted.fraction) if count else memory.smallest(*arguments, wanted.fraction)
    )
    one = all_ = None
    batch = found.users
    if card.bandwidth is not None and found.users:
        batch = memory.largest_batch(shape, found, element, card, load, wanted.tpot)
        one = wanted.efficiency / memory.step_seconds(shape, found, element, card, load, 1)
        all_ = (
            wanted.efficiency * batch / memory.step_seconds(shape, found, element, card, load, batch) if batch else 0.0
        )
    return Plan(
        shape=shape,
        card=card,
        wanted=wanted,
        replica=found,
        per_token=memory.kv_bytes_per_token(shape, element),
        mistaken=memory.kv_bytes_per_token(shape, element, shape.heads),
        batch=batch,
        tokens_one=one,
        tokens_all=all_,
        replicas=_replicas(wanted, batch, all_),
    )


def _replicas(wanted: Wanted, batch: int, throughput: float | None) -> int | None:
    """The larger of what users and requests ask for; None when neither is asked or nothing can be said."""
    needs = []
    if wanted.users is not None and batch:
        needs.append(memory.replicas_for_users(wanted.users, batch))
    if wanted.rate is not None and throughput:
        needs.append(memory.replicas_for_rate(wanted.rate, wanted.answer, throughput))
    return max(needs) if needs else None


def warnings(found: Plan) -> list[str]:
    """What is to be doubted, the most important first."""
    shape, wanted, lines = found.shape, found.wanted, list(found.shape.warnings)
    if shape.longest is not None and wanted.load.context > shape.longest:
        lines.append(f"a context of {wanted.load.context} is more than the model's {shape.longest}")
    if not found.replica.users:
        lines.append(
            f"{found.replica.accelerators} x {found.card.name} cannot hold the weights and one user at full context"
        )
    if wanted.tpot is not None and found.replica.users and not found.batch:
        lines.append("not even one sequence decodes within --tpot: more accelerators, or smaller weights")
    if found.replica.accelerators > shape.kv_heads and shape.latent is None:
        lines.append(
            f"{found.replica.accelerators} accelerators share {shape.kv_heads} KV heads: each is held "
            f"{memory.copies(shape, found.replica.accelerators):g} times"
        )
    if "fp8" in (wanted.weights, wanted.kv) and not found.card.fp8:
        lines.append(f"{found.card.name} does not compute in FP8: it saves memory there, not time")
    if any(window is not None for window in shape.windows):
        lines.append(
            "the pages outside sliding windows are counted as freed; an engine that keeps them (Pagefleet's own does) "
            "holds as many users as without windows"
        )
    return lines


def document(found: Plan) -> dict[str, Any]:
    """The plan for machines: bytes, tokens, tokens per second."""
    shape, one = found.shape, found.replica
    return {
        "model": shape.name,
        "parameters": shape.parameters,
        "layers": shape.layers,
        "heads": shape.heads,
        "kvHeads": shape.kv_heads,
        "headDim": shape.head_dim,
        "kvBytesPerToken": found.per_token,
        "kvBytesPerTokenWithQueryHeads": found.mistaken,
        "accelerator": found.card.name,
        "acceleratorsPerReplica": one.accelerators,
        "weightBytes": one.weights,
        "kvBytes": one.room,
        "pageBytes": one.page_bytes,
        "pages": one.pages,
        "tokens": one.pages * found.wanted.load.page,
        "context": found.wanted.load.context,
        "usersPerReplica": one.users,
        "batch": found.batch,
        "tokensPerSecondOneUser": found.tokens_one,
        "tokensPerSecondReplica": found.tokens_all,
        "replicas": found.replicas,
        "accelerators": found.replicas * one.accelerators if found.replicas is not None else None,
        "warnings": warnings(found),
    }


def table(found: Plan) -> RenderableType:
    rows = Table(box=None, show_header=False)
    for name, value in lines(found).items():
        rows.add_row(Text(name, "bold"), Text(value))
    doubts = [Text(f"warning: {line}", "yellow") for line in warnings(found)]
    return Group(rows, *((Text(""), *doubts) if doubts else ()))


def lines(found: Plan) -> Mapping[str, str]:
    shape, one, wanted = found.shape, found.replica, found.wanted
    cache = (
        f"{shape.layers} layers x {shape.latent} elements"
        if shape.latent is not None
        else f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim}"
    )
    told = {
        "model": f"{shape.name}: {shape.parameters / 1e9:.2f} B parameters, {shape.heads} query heads, {shape.kv_heads} KV heads",
        "KV per token": f"{found.per_token} bytes = {cache} x {KV[wanted.kv]} bytes ({wanted.kv})",
    }
    if found.mistaken != found.per_token:
        told["not"] = (
            f"{found.mistaken} bytes: with {shape.heads} query heads for KV heads it would be "
            f"{found.mistaken / found.per_token:g} times too much"
        )
    told |= {
        "one replica": f"{one.accelerators} x {found.card.name}, {wanted.fraction:.0%} of {binary(found.card.memory * one.accelerators)}",
        "weights": f"{binary(one.weights)} ({'as in the files' if wanted.weights == 'stored' else wanted.weights})",
        "room for KV": f"{binary(one.room)} = {one.pages} pages of {wanted.load.page} tokens ({binary(one.page_bytes)} each)",
        "users": f"{one.users} at once with {wanted.load.context} tokens each",
    }
    if found.tokens_one is not None and found.tokens_all is not None:
        share = "" if wanted.efficiency == 1 else f" x {wanted.efficiency:g}"
        told["decoding"] = (
            f"at most {found.tokens_one:.0f} tokens/s for one user, {found.tokens_all:.0f} for {found.batch} at once "
            f"(memory bandwidth{share}, {wanted.load.mean} tokens held by each; prompts not counted)"
        )
    if found.replicas is not None:
        asked = [f"{wanted.users} users"] if wanted.users is not None else []
        asked += [f"{wanted.rate:g} requests/s of {wanted.answer:g} tokens"] if wanted.rate is not None else []
        told["needed"] = (
            f"at least {found.replicas} replicas = {found.replicas * one.accelerators} accelerators for {' and '.join(asked)}"
        )
    return told
