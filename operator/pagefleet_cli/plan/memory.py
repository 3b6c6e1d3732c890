"""The users that fit beside a model's weights, and the decoding speed that memory allows. Pure; every function is arithmetic.

Bytes per token of KV cache: 2 (keys and values) x layers x KV heads x head size x bytes of an element
(vLLM, Kwon et al., SOSP 2023, section 3). Decoding reads the weights once a step for the whole batch and the cache of
every sequence in it, so bandwidth / bytes read bounds steps per second. Prompts are bound by arithmetic.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pagefleet_cli.base.errors import CommandError
from pagefleet_cli.plan.accelerators import Accelerator
from pagefleet_cli.plan.shape import Shape

# Bytes for each parameter of a linear layer. int8: a float32 scale for 64; awq: 4 bits, a 16-bit scale and a 4-bit zero
# for 128. Embeddings, output and norms stay 16-bit (32-bit in float32).
LINEAR = {"float32": 4.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0 + 4 / 64, "awq": 0.5 + (2 + 0.5) / 128}
OTHERS = {"float32": 4.0}
KV = {"bf16": 2, "float16": 2, "fp8": 1, "int8": 1, "float32": 4}
PARALLEL = (1, 2, 4, 8, 16, 32)
NODE = 8  # accelerators of a usual node


@dataclass(frozen=True)
class Load:
    """The load of one replica. `context`: tokens of one user at most; `mean`: tokens held by one on average; `shared`: tokens at the
    beginning of every context that are the same for all users, so that prefix caching holds them once. `prompt`: tokens of a prompt that
    are computed for an answer of `answer` tokens; 0: prompts are not counted."""

    context: int
    mean: int
    page: int = 16
    shared: int = 0
    prompt: float = 0.0
    answer: float = 256.0


@dataclass(frozen=True)
class Replica:
    """`accelerators` together hold one copy of the weights. Sizes in bytes over all of them; `room`: for KV pages."""

    accelerators: int
    weights: int
    room: int
    page_bytes: int
    pages: int
    users: int


def kv_bytes_per_token(shape: Shape, element: int, heads: int | None = None) -> int:
    """Of one token in every layer. `heads`: another number of heads than the model's KV heads, to show the mistake."""
    if shape.latent is not None and heads is None:
        return shape.layers * shape.latent * element
    return 2 * shape.layers * (heads or shape.kv_heads) * shape.head_dim * element


def kv_bytes_per_user(shape: Shape, element: int, tokens: int, page: int) -> int:
    """Of one sequence of `tokens`, in whole pages; a layer with a window keeps the pages that the window touches."""
    layer = kv_bytes_per_token(shape, element) // shape.layers
    whole = math.ceil(tokens / page)
    pages = [whole if window is None else min(whole, math.ceil(window / page) + 1) for window in shape.windows]
    return sum(pages) * page * layer


def weight_bytes(shape: Shape, precision: str, stored: bool) -> int:
    """In memory. `stored`: as the files hold them."""
    if stored and shape.stored is not None:
        return shape.stored
    return math.ceil(shape.linear * LINEAR[precision] + shape.others * OTHERS.get(precision, 2.0))


def read_bytes(shape: Shape, weights: int, batch: float) -> float:
    """Of the weights in one decoding step: all, or of a mixture of experts those that `batch` tokens are expected to meet.

    One token meets k of E experts; `batch` independent ones E (1 - (1 - k/E)^batch).
    """
    if shape.experts_per_token >= shape.experts:
        return weights
    missed = 1 - shape.experts_per_token / shape.experts
    share = 1 - math.pow(missed, batch)
    experts = (shape.linear - shape.active) / missed
    return weights * (1 - experts / shape.parameters * (1 - share))


def copies(shape: Shape, accelerators: int) -> float:
    """The copies of each KV head when there are more accelerators than KV heads."""
    heads = 1 if shape.latent is not None else shape.kv_heads
    return max(1.0, accelerators / heads)


def replica(
    shape: Shape, weights: int, element: int, card: Accelerator, load: Load, count: int, fraction: float
) -> Replica:
    """One copy on `count` accelerators, of whose memory `fraction` may be used."""
    room = math.floor(card.memory * fraction * count) - weights
    times = copies(shape, count)
    page_bytes = math.ceil(kv_bytes_per_token(shape, element) * load.page * times)
    shared = load.shared // load.page * load.page  # only full pages are shared
    common = math.ceil(kv_bytes_per_user(shape, element, shared, load.page) * times)
    user = math.ceil(kv_bytes_per_user(shape, element, load.context - shared, load.page) * times)
    return Replica(count, weights, max(0, room), page_bytes, max(0, room) // page_bytes, max(0, room - common) // user)


def sizes(
    shape: Shape, weights: int, element: int, card: Accelerator, load: Load, fraction: float
) -> tuple[Replica, ...]:
    """The replicas that hold the weights and one user at full context, smallest first: those within a node, or else the smallest of
    all. Raises CommandError where none does."""
    counts = [count for count in PARALLEL if shape.heads % count == 0]
    fitting = [one for count in counts if (one := replica(shape, weights, element, card, load, count, fraction)).users]
    if not fitting:
        raise CommandError(
            f"the model does not fit {PARALLEL[-1]} x {card.name} with one user at {load.context} tokens"
        )
    return tuple(one for one in fitting if one.accelerators <= NODE) or (fitting[0],)


def step_seconds(shape: Shape, copy: Replica, element: int, card: Accelerator, load: Load, batch: float) -> float:
    """The shortest mean time of one step of `batch` sequences that hold `load.mean` tokens each: every sequence gets a token, and of the
    prompts that come in between, a step computes an equal share. Raises CommandError."""
    if card.bandwidth is None:
        raise CommandError("the accelerator's bandwidth is not known: give --bandwidth")
    cache = kv_bytes_per_user(shape, element, load.mean, load.page) * copies(shape, copy.accelerators)
    decoding = (read_bytes(shape, copy.weights, batch) + batch * cache) / (card.bandwidth * copy.accelerators)
    return decoding + batch * prompt_seconds(shape, copy, card, load) / load.answer


def prompt_seconds(shape: Shape, copy: Replica, card: Accelerator, load: Load) -> float:
    """The shortest time in which a replica computes one prompt; 0 where prompts are not counted. Raises CommandError.

    Two operations for each parameter of a linear layer that a token meets, and four for each element of a query and each token that it
    attends to: half of the prompt on average, or the window (Kaplan et al., Scaling Laws for Neural Language Models, 2020, section 2.1).
    """
    if not load.prompt:
        return 0.0
    if card.flops is None:
        raise CommandError("the accelerator's arithmetic is not known: give --tflops, or leave --input-tokens out")
    attended = sum(min(load.prompt / 2, window or load.prompt / 2) for window in shape.windows)
    each = 2 * shape.active + 4 * shape.heads * shape.head_dim * attended
    return load.prompt * each / (card.flops * copy.accelerators)


def largest_batch(shape: Shape, copy: Replica, element: int, card: Accelerator, load: Load, tpot: float | None) -> int:
    """The largest batch that memory holds and, with `tpot`, whose step takes at most so many seconds."""
    low, high = 0, copy.users
    if tpot is None:
        return high
    while low < high:  # a step only grows with its batch
        middle = (low + high + 1) // 2
        low, high = (
            (middle, high) if step_seconds(shape, copy, element, card, load, middle) <= tpot else (low, middle - 1)
        )
    return low


def replicas_for_users(users: int, batch: int) -> int:
    return math.ceil(users / batch)


def replicas_for_rate(rate: float, answer_tokens: float, throughput: float) -> int:
    """`rate` requests per second with answers of `answer_tokens`, at `throughput` tokens per second and replica."""
    return max(1, math.ceil(rate * answer_tokens / throughput - 1e-9))
