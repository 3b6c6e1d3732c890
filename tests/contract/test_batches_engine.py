"""Batches with OpenAI's own client, a real Envoy and a real engine: every endpoint's lines have that endpoint's answers, and a client's
request gets a seat in an engine whose seats batches have taken.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from support.engine.api_process import NAME, make_model
from support.gateway.batches import desk
from support.gateway.engine_pods import AT_ONCE, BODY, pods
from support.gateway.fleet import until

from pagefleet_contract.engine_metrics import HIGHER_FIRST
from pagefleet_gateway.cluster.engines import Engine

CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
BODIES: dict[str, dict[str, object]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hello", "max_tokens": 4},
    "/v1/embeddings": {"input": "hello"},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16, "store": False},
}
OBJECTS = {
    "/v1/chat/completions": "chat.completion",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "list",
    "/v1/responses": "response",
}


def line(number: int, endpoint: str, **body: object) -> dict[str, object]:
    asked = {"model": NAME, **BODIES[endpoint], **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": endpoint, "body": asked}


async def test_each_endpoint_answers_its_lines(tmp_path: Path) -> None:
    async with desk(tmp_path) as here, pods(here.fleet, make_model(tmp_path / "m"), tmp_path, count=1):
        await here.start_server()
        client = here.client(path="/team/chat")
        for endpoint, kind in OBJECTS.items():
            wrong = line(9, endpoint, temperature="hot", input=[], prompt=[], messages=[])
            lines = [*(line(number, endpoint) for number in range(4)), wrong]
            done = await here.ended(client, await here.submit(client, lines, endpoint=endpoint))
            assert done.status == "completed" and done.model == NAME, endpoint
            rows, failed = [await here.rows(client, name) for name in (done.output_file_id, done.error_file_id)]
            assert sorted(row["custom_id"] for row in rows) == [f"line-{number}" for number in range(4)], failed
            assert {row["response"]["body"]["object"] for row in rows} == {kind}
            assert done.usage is not None and done.usage.input_tokens > 0
            (row,) = failed
            assert (row["custom_id"], row["response"]["status_code"]) == ("line-9", 400)
            assert row["response"]["body"]["error"]["param"], endpoint


async def test_a_request_of_a_client_gets_the_seat_of_a_line(tmp_path: Path) -> None:
    """The lines fill all seats of the engine, and more of them wait in it. Each would take its seat for 8,000 tokens, which a busy machine
    does not generate while it answers the client. The refused lines need no seat; the server sends more at once for every answer."""
    async with desk(tmp_path) as here, pods(here.fleet, make_model(tmp_path / "m"), tmp_path, count=1) as engines:
        # As the pods of our operator tell.
        pod = replace(engines.serving[0].pod, engine=Engine(priority=HIGHER_FIRST))
        here.fleet.state.put_pod(pod)
        await until(lambda: pod in here.fleet.serving())
        await here.start_server()
        client = here.client(path="/team/chat")
        long: dict[str, object] = {**BODY, "model": NAME, "max_tokens": 8000}
        bodies = [{**long, "temperature": "hot"}] * 12 + [long] * 4
        lines = [line(number, "/v1/completions", **body) for number, body in enumerate(bodies)]
        batch = await here.submit(client, lines, endpoint="/v1/completions")

        async def counts() -> tuple[int, int]:
            found = (await client.batches.retrieve(batch.id)).request_counts
            return (0, 0) if found is None else (found.failed, found.completed)

        async def seats_are_taken() -> bool:
            return (await counts())[0] == 12 and here.fleet.gateway.ledger.in_flight(pod) > AT_ONCE

        await until(seats_are_taken, seconds=60)
        answer = await client.completions.create(model=NAME, prompt="now", max_tokens=3)
        assert answer.usage is not None and answer.usage.completion_tokens <= 3
        assert await counts() == (12, 0), "no line has given its seat up by ending"
        await here.ended(client, batch, seconds=240)
        assert await counts() == (12, 4)
