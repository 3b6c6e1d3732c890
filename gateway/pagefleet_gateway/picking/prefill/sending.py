"""What is known of the pods of a request once its prompt is sent to them. No I/O; the time is an argument."""

from __future__ import annotations

from pagefleet_gateway.cluster.state import Pod
from pagefleet_gateway.picking.prefill.choice import uncached
from pagefleet_gateway.picking.prompts.backlog import Backlogs
from pagefleet_gateway.picking.prompts.prefixes import Prefixes
from pagefleet_gateway.picking.prompts.request_cost import RequestCost


def send_prompt(
    prefixes: Prefixes, backlogs: Backlogs, decode: Pod, prefill: Pod | None, cost: RequestCost, now: float
) -> int:
    """Record the prompt with the pods that get it. Return its tokens that the one that computes it has probably not cached."""
    pod = prefill or decode
    if prefill is not None:
        prefixes.record(decode.cache, cost.blocks)  # it gets the prefill pod's KV pages
    tokens = uncached(cost, prefixes, pod)
    prefixes.record(pod.cache, cost.blocks)
    backlogs.add_prompt(pod, tokens, now)
    return tokens
