"""A plan: everything that `pagefleet plan` reports about a model on an accelerator, as values and as a table. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from pagefleet_cli.base.words import binary
from pagefleet_cli.plan import memory
from pagefleet_cli.plan.accelerators import Accelerator
from pagefleet_cli.plan.memory import KV, Load, Replica
from pagefleet_cli.plan.shape import Shape

# A small replica has little room beside its weights; a large one exchanges activations in every layer, and more is lost with it.
WASTE = 1.5


@dataclass(frozen=True)
class Request:
    """What is asked for. `weights`: one of memory.LINEAR, or "stored"; `kv`: one of memory.KV; `fraction` of memory. `computed`: one of
    memory.LINEAR, the type of stored weights; None where that is not known."""

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
    computed: str | None = None

    @property
    def fp8(self) -> bool:
        """Whether linear layers are computed in FP8, where the accelerator can."""
        return "fp8" in (self.weights, self.computed)


@dataclass(frozen=True)
class Plan:
    """`tokens_one`, `tokens_all`: tokens per second of one user alone and of a replica's batch, None unknown. `smaller` is the plan
    with the smallest replica that fits, where it needs too many accelerators in all."""

    shape: Shape
    card: Accelerator
    request: Request
    replica: Replica
    per_token: int
    mistaken: int
    batch: int
    tokens_one: float | None
    tokens_all: float | None
    replicas: int | None
    smaller: Plan | None = None

    @property
    def accelerators(self) -> int | None:
        """Accelerators of all replicas; None when nothing says how many replicas are needed."""
        return None if self.replicas is None else self.replicas * self.replica.accelerators


def plan(shape: Shape, card: Accelerator, request: Request) -> Plan:
    """Plan with the smallest replica that needs at most WASTE times the accelerators of the best size; where nothing says how much is
    needed, with the smallest that fits. Raises CommandError when nothing fits."""
    element, load = KV[request.kv], request.load
    if request.fp8 and card.fp8 and card.flops is not None:
        card = replace(card, flops=2 * card.flops)
    weights = memory.weight_bytes(
        shape, "bf16" if request.weights == "stored" else request.weights, request.weights == "stored"
    )
    arguments = (shape, weights, element, card, load)
    if request.accelerators:
        copy = memory.replica(*arguments, request.accelerators, request.fraction)
        return _with(copy, shape, card, request)
    plans = [_with(copy, shape, card, request) for copy in memory.sizes(*arguments, request.fraction)]
    enough = [one for one in plans if one.accelerators is not None] or plans[:1]
    fewest = min(one.accelerators or 0 for one in enough)
    chosen = next(one for one in enough if (one.accelerators or 0) <= WASTE * fewest)
    return chosen if chosen is plans[0] else replace(chosen, smaller=plans[0])


def _with(copy: Replica, shape: Shape, card: Accelerator, request: Request) -> Plan:
    element, load = KV[request.kv], request.load
    one = all_ = None
    batch = copy.users
    if card.bandwidth is not None and copy.users:
        # Steps take longer than at the data sheet's peak, by the share of it that is reached.
        fastest = None if request.tpot is None else request.tpot * request.efficiency
        batch = memory.largest_batch(shape, copy, element, card, load, fastest)
        one = request.efficiency / memory.step_seconds(shape, copy, element, card, replace(load, prompt=0.0), 1)
        all_ = (
            request.efficiency * batch / memory.step_seconds(shape, copy, element, card, load, batch) if batch else 0.0
        )
    return Plan(
        shape=shape,
        card=card,
        request=request,
        replica=copy,
        per_token=memory.kv_bytes_per_token(shape, element),
        mistaken=memory.kv_bytes_per_token(shape, element, shape.heads),
        batch=batch,
        tokens_one=one,
        tokens_all=all_,
        replicas=_replicas(request, batch, all_),
    )


def _replicas(request: Request, batch: int, throughput: float | None) -> int | None:
    """The larger number of replicas of those for the users and for the rate; None when neither is given or can be computed."""
    if throughput is None and _bound(request):
        return None  # fewer replicas than are needed would be worse than no number
    needs = []
    if request.users is not None and batch:
        needs.append(memory.replicas_for_users(request.users, batch))
    if request.rate is not None and throughput:
        needs.append(memory.replicas_for_rate(request.rate, request.answer, throughput))
    return max(needs) if needs else None


def _bound(request: Request) -> list[str]:
    """The options that ask for a speed."""
    given = {"--requests-per-second": request.rate or None, "--tpot": request.tpot}
    return [option for option, value in given.items() if value is not None]


def warnings(result: Plan) -> list[str]:
    """Reasons to doubt the plan, the most important first."""
    shape, request, lines = result.shape, result.request, list(result.shape.warnings)
    if shape.longest is not None and request.load.context > shape.longest:
        lines.append(f"a context of {request.load.context} is more than the model's {shape.longest}")
    if result.card.bandwidth is None and (options := _bound(request)):
        lines.append(
            f"{' and '.join(options)} cannot be planned: the accelerator's bandwidth is not known, give --bandwidth"
        )
    if not result.replica.users:
        lines.append(
            f"{result.replica.accelerators} x {result.card.name} cannot hold the weights and one user at full context"
        )
    if request.tpot is not None and result.replica.users and not result.batch:
        lines.append("not even one sequence decodes within --tpot: more accelerators, or smaller weights")
    if shape.heads % result.replica.accelerators:
        lines.append(
            f"{result.replica.accelerators} accelerators cannot share {shape.heads} query heads evenly, so engines refuse them, unless "
            "spec.engine.pipelineParallelSize divides the layers among them"
        )
    if result.replica.accelerators > shape.kv_heads and shape.latent is None:
        lines.append(
            f"{result.replica.accelerators} accelerators share {shape.kv_heads} KV heads: each is held "
            f"{memory.copies(shape, result.replica.accelerators):g} times"
        )
    if (request.fp8 or request.kv == "fp8") and not result.card.fp8:
        lines.append(f"{result.card.name} does not compute in FP8: it saves memory there, not time")
    if any(window is not None for window in shape.windows):
        lines.append(
            "the pages outside sliding windows are counted as freed; an engine that keeps them (Pagefleet's own does) "
            "holds as many users as without windows"
        )
    return lines


def document(result: Plan) -> dict[str, Any]:
    """The plan for machines: bytes, tokens, tokens per second."""
    shape, one = result.shape, result.replica
    return {
        "model": shape.name,
        "parameters": shape.parameters,
        "layers": shape.layers,
        "heads": shape.heads,
        "kvHeads": shape.kv_heads,
        "headDim": shape.head_dim,
        "kvBytesPerToken": result.per_token,
        "kvBytesPerTokenWithQueryHeads": result.mistaken,
        "accelerator": result.card.name,
        "acceleratorsPerReplica": one.accelerators,
        "weightBytes": one.weights,
        "kvBytes": one.room,
        "pageBytes": one.page_bytes,
        "pages": one.pages,
        "tokens": one.pages * result.request.load.page,
        "context": result.request.load.context,
        "usersPerReplica": one.users,
        "batch": result.batch,
        "tokensPerSecondOneUser": result.tokens_one,
        "tokensPerSecondReplica": result.tokens_all,
        "replicas": result.replicas,
        "accelerators": result.accelerators,
        "warnings": warnings(result),
    }


def _prompts(load: Load) -> str:
    return (
        f"a prompt of {load.prompt:g} tokens computed for each {load.answer:g}"
        if load.prompt
        else "prompts not counted"
    )


def table(result: Plan) -> RenderableType:
    rows = Table(box=None, show_header=False)
    for name, value in lines(result).items():
        rows.add_row(Text(name, "bold"), Text(value))
    doubts = [Text(f"warning: {line}", "yellow") for line in warnings(result)]
    return Group(rows, *((Text(""), *doubts) if doubts else ()))


def lines(result: Plan) -> Mapping[str, str]:
    shape, one, request = result.shape, result.replica, result.request
    cache = (
        f"{shape.layers} layers x {shape.latent} elements"
        if shape.latent is not None
        else f"2 x {shape.layers} layers x {shape.kv_heads} KV heads x {shape.head_dim}"
    )
    shown = {
        "model": f"{shape.name}: {shape.parameters / 1e9:.2f} B parameters, {shape.heads} query heads, {shape.kv_heads} KV heads",
        "KV per token": f"{result.per_token} bytes = {cache} x {KV[request.kv]} bytes ({request.kv})",
    }
    if result.mistaken != result.per_token:
        shown["not"] = (
            f"{result.mistaken} bytes: with {shape.heads} query heads for KV heads it would be "
            f"{result.mistaken / result.per_token:g} times too much"
        )
    shown |= {
        "one replica": f"{one.accelerators} x {result.card.name}, {request.fraction:.0%} of {binary(result.card.memory * one.accelerators)}",
        "weights": f"{binary(one.weights)} ({'as in the files' if request.weights == 'stored' else request.weights})",
        "room for KV": f"{binary(one.room)} = {one.pages} pages of {request.load.page} tokens ({binary(one.page_bytes)} each)",
        "users": f"{one.users} at once with {request.load.context} tokens each"
        + (f", the first {request.load.shared} of them in common" if request.load.shared else ""),
    }
    if result.smaller is not None:
        count = result.smaller.replica.accelerators
        needed = (
            "it would not be fast enough"
            if result.smaller.accelerators is None
            else f"{result.smaller.accelerators} accelerators would be needed"
        )
        shown["one replica"] += f"; {count} x {result.card.name} hold the model too, but {needed}"
    if result.tokens_one is not None and result.tokens_all is not None:
        share = "" if request.efficiency == 1 else f" x {request.efficiency:g}"
        shown["decoding"] = (
            f"at most {result.tokens_one:.0f} tokens/s for one user, {result.tokens_all:.0f} for {result.batch} at once "
            f"(memory bandwidth{share}, {request.load.mean} tokens held by each; {_prompts(request.load)})"
        )
    if result.replicas is not None:
        demand = [f"{request.users} users"] if request.users is not None else []
        demand += [f"{request.rate:g} requests/s of {request.answer:g} tokens"] if request.rate is not None else []
        shown["needed"] = (
            f"at least {result.replicas} replicas = {result.accelerators} accelerators for {' and '.join(demand)}"
        )
    return shown
