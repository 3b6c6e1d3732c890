"""Protects the choice of prefill pods: whatever pods there are and however requests come and end, no request is sent to a prefill pod by
Envoy, a prefill pod that is named is ready and of the revision of the decode pod that asks it, and no work is left in the books when
all requests have ended."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from pagefleet_contract.disaggregation import OUTCOMES, prefill_addresses, prefill_header
from pagefleet_gateway.cluster.engines import Engine
from pagefleet_gateway.cluster.service import Service
from pagefleet_gateway.cluster.state import Pod, State
from pagefleet_gateway.cluster.steps import finish
from pagefleet_gateway.measuring.access_log import LogLine, complete, parse
from pagefleet_gateway.picking.ledger import Ledger
from pagefleet_gateway.picking.pick import Pick, Request
from pagefleet_gateway.picking.picker import Picker

REVISIONS = ("a", "b", "c")
PODS = st.lists(
    st.builds(
        lambda number, revision, ready, prefills, least: Pod(
            f"u{number}", f"p{number}", "team", "chat", revision, f"10.0.0.{number}:8000", ready,
            Engine(prefill_from=least), prefills=prefills,
        ),
        st.integers(1, 250), st.sampled_from(REVISIONS), st.booleans(), st.booleans(), st.sampled_from([1, 64, 600]),
    ),
    max_size=14,
    unique_by=lambda pod: pod.uid,
)  # fmt: skip
WEIGHTS = st.lists(st.tuples(st.sampled_from(REVISIONS), st.integers(0, 100)), max_size=3, unique_by=lambda one: one[0])
STEPS = st.lists(
    st.tuples(
        st.integers(0, 2000),  # characters of the prompt
        st.booleans(),  # whether a stream is asked for
        st.sampled_from(["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]),
        st.sampled_from(["", *OUTCOMES]),
        st.booleans(),  # whether its first token is reported
        st.booleans(),  # whether it ends before the next one comes
    ),
    max_size=20,
)


@given(PODS, WEIGHTS, STEPS, st.sampled_from(["", *REVISIONS]), st.integers(0, 2**32))
def test_both_legs_of_every_request_are_of_one_revision(
    pods: list[Pod],
    weights: list[tuple[str, int]],
    steps: list[tuple[int, bool, str, str, bool, bool]],
    mirrored: str,
    seed: int,
) -> None:
    state, ledger = State(), Ledger()
    picker = Picker(state, ledger, random.Random(seed))
    state.replace_pods(pods)
    state.confirm(pods)
    state.put_service(
        Service("team", "chat", "smol", tuple(weights), canary="b", mirror=(mirrored, 50.0 if mirrored else 0.0))
    )
    finish(ledger.backlogs.retain(state.known))
    open_: list[tuple[str, str, str]] = []

    def end(request: str, upstream: str, outcome: str, now: float) -> None:
        line = parse(
            json.dumps(
                {"id": request, "code": 200, "flags": "-", "duration_us": 9e5, "ttft_us": 5e5, "attempts": 1,
                 "upstream": upstream, "content_type": "text/event-stream", "prefilled": outcome or None}
            ).encode()
        )  # fmt: skip
        assert isinstance(line, LogLine)
        complete(line, ledger, now)

    for number, (length, streams, path, outcome, reported, ends) in enumerate(steps):
        now = float(number)
        text = f"{number % 4} " + "x" * length
        body = {"model": "smol", "prompt": text, "messages": [{"role": "user", "content": text}], "stream": streams}
        pick = picker.decide(Request(f"r{number}", "POST", f"/team/chat{path}", {}, json.dumps(body).encode()), now)
        if not isinstance(pick, Pick):
            continue
        asked = {pod.revision for pod in (*pick.choices, pick.mirror) if pod is not None}
        assert not any(pod.prefills for pod in (*pick.choices, pick.mirror) if pod is not None)
        assert all(pod.prefills and pod.ready and pod.revision in asked for pod in pick.prefill)
        assert path != "/v1/embeddings" or not pick.prefill
        header = prefill_header((pod.revision, pod.address) for pod in pick.prefill)
        by_address = {pod.address: pod for pod in pods}
        for decode in pick.choices:
            for address in prefill_addresses(header, decode.revision):
                assert by_address[address].revision == decode.revision
        if reported:
            ledger.record_first_token(f"r{number}", 0.5)
        entry = (f"r{number}", pick.choices[0].address, outcome)
        if ends:
            end(*entry, now)
        else:
            open_.append(entry)
    for entry in open_:
        end(*entry, float(len(steps)))
    assert len(ledger) == 0 and not any(map(ledger.in_flight, pods))
