"""Protects quotas from answers of odd sizes: what a few clients ask for makes the tokens of nobody cheap."""

from __future__ import annotations

from pagefleet_gateway.limits.charges import Answer, Charges, OpenCharge
from pagefleet_gateway.limits.rate_limits import Charge, RateLimits

SERVICE = ("team", "chat")


def asked(charges: Charges, name: str, answer: Answer, most: int = 4096) -> int:
    charges.open(name, OpenCharge(Charge(100 + most), SERVICE, 100, 1e9, "one"))
    used = charges.settle(name, answer)
    assert used is not None
    return used.output


def test_answers_with_log_probabilities_do_not_make_the_tokens_of_streams_cheap() -> None:
    charges = Charges(RateLimits())
    # `prompt_logprobs: 20` of 1,000 tokens, `max_tokens: 1`: 1.2 MB for one token.
    for number in range(5):
        asked(charges, f"logprobs-{number}", Answer(200, output_tokens=1, prompt_tokens=1000, body_bytes=1_200_000))
    # A stream of 2,000 tokens whose client asked for no usage: some 200 bytes an event.
    assert asked(charges, "stream", Answer(200, body_bytes=2000 * 200)) >= 1000
