"""The prefill pods that a request's decode pods ask, one at most for each of their revisions. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

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
    """Return a prefill pod of each decode pod's revision, because both legs of a request are of one revision.

    `pools` are the ready prefill pods by revision. `best` returns the best of some for the prompt, None while none is sound.
    A revision's first decode pod decides: it computes a prompt itself that it has cached but for a short rest.
    """
    first: dict[str, Pod] = {}
    for decode in decodes:
        first.setdefault(decode.revision, decode)
    chosen = (
        best(pools[name])
        for name, decode in first.items()
        if pools.get(name) and uncached(cost, prefixes, decode) >= pools[name][0].engine.prefill_from
    )
    return tuple(filter(None, chosen))


def uncached(cost: RequestCost, prefixes: Prefixes, pod: Pod) -> int:
    """Return the tokens of a prompt that a pod has probably not cached."""
    return max(0, cost.prompt_tokens - block_tokens(prefixes.matched(pod.cache, cost.blocks)))
