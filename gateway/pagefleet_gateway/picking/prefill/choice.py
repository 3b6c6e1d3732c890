"""The prefill pods that a request's decode pods ask, of each of their revisions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from pagefleet_contract.disaggregation import SPLIT_PATHS
from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.picking.prompts.prefixes import Prefixes
from pagefleet_gateway.picking.prompts.request_cost import RequestCost, block_tokens


def may_split(method: str, path: str) -> bool:
    """Return whether requests like this one may have a prefill leg."""
    return method == "POST" and path.partition("?")[0].endswith(SPLIT_PATHS)


def prefill_pods(
    pools: Mapping[str, Sequence[Pod]],
    decodes: Iterable[Pod],
    cost: RequestCost,
    prefixes: Prefixes,
    best: Callable[[Sequence[Pod]], Pod | None],
) -> tuple[Pod, ...]:
    """Return prefill pods of each decode pod's revision, because both legs of a request are of one revision.

    `pools` are the ready prefill pods by revision. `best` returns the best of some for the prompt, None while none is sound.
    A revision's first decode pod decides: it computes a prompt itself that it has cached but for a short rest.
    """
    first: dict[str, Pod] = {}
    for decode in decodes:
        first.setdefault(decode.revision, decode)
    chosen = (
        _named(pools[name], best)
        for name, decode in first.items()
        if pools.get(name) and uncached(cost, prefixes, decode) >= pools[name][0].engine.prefill_from
    )
    return tuple(pod for pods in chosen for pod in pods)


def _named(pool: Sequence[Pod], best: Callable[[Sequence[Pod]], Pod | None]) -> Iterator[Pod]:
    """Yield the prefill pod of a revision. Where its decode pods compute no prompt (`prefill_from` 0), one that has failed is better
    than none, and a second one is named for the case that the first fails."""
    first = best(pool)
    if pool[0].engine.prefill_from:
        yield from filter(None, (first,))
        return
    first = first or pool[0]
    yield first
    if others := [pod for pod in pool if pod is not first]:
        yield from filter(None, (best(others),))


def uncached(cost: RequestCost, prefixes: Prefixes, pod: Pod) -> int:
    """Return the tokens of a prompt that a pod has probably not cached."""
    return max(0, cost.prompt_tokens - block_tokens(prefixes.matched(pod.cache, cost.blocks)))
