"""Scene: apply an InferenceService, see its children, talk to it with the official openai client."""

from __future__ import annotations

import openai

from pagefleet_local.demo.stage import NAME, NAMESPACE, Stage

TITLE = "kubectl apply an InferenceService: SmolLM2 on our engine, answering through the gateway"
QUESTION = "What is the capital of France? Answer in one short sentence."


async def play(stage: Stage) -> None:
    narrator = stage.narrator
    await stage.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    await stage.edit()
    view = await stage.watch(lambda v: v.is_true("Ready"), timeout=180, what="the service is Ready")
    narrator.command(f"kubectl get deployments,services,poddisruptionbudgets,pods -n {NAMESPACE}")
    children = await stage.kubectl.run("get", "deploy,svc,pdb,pods", "-n", NAMESPACE)
    narrator.output(children.out, limit=20)
    narrator.command(f"kubectl get isvc -n {NAMESPACE}")
    narrator.output((await stage.kubectl.run("get", "isvc", "-n", NAMESPACE)).out)
    child = f"{NAME}-{view.stable}"
    for kind in ("deployment", "service", "poddisruptionbudget"):
        narrator.check(await stage.kubectl.get(kind, child, NAMESPACE) is not None, f"{kind} {child} exists")
    await _talk(stage)


async def _talk(stage: Stage) -> None:
    narrator = stage.narrator
    async with openai.AsyncOpenAI(base_url=stage.url, api_key="unused", max_retries=0) as client:
        narrator.say(f"openai client, base_url={stage.url}: {QUESTION!r}")
        whole = await client.chat.completions.create(
            model="smollm2", messages=[{"role": "user", "content": QUESTION}], max_tokens=32, temperature=0
        )
        answer = whole.choices[0].message.content or ""
        narrator.say(f"  [cyan]{answer.strip()}[/cyan]")
        narrator.check("Paris" in answer, "the answer names Paris")
        narrator.say("the same, streamed:")
        pieces: list[str] = []
        finish = None
        stream = await client.chat.completions.create(
            model="smollm2",
            messages=[{"role": "user", "content": QUESTION}],
            max_tokens=32,
            temperature=0,
            stream=True,
        )
        async for chunk in stream:
            for choice in chunk.choices:
                pieces.append(choice.delta.content or "")
                finish = choice.finish_reason or finish
        narrator.say(f"  [cyan]{'|'.join(piece for piece in pieces if piece)}[/cyan]")
        narrator.check(
            "".join(pieces) == answer and finish in ("stop", "length"),
            "the stream brings the same text and a finish_reason",
        )
