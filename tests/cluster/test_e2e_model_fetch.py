"""Protects a model's way from a hub to an answer on the real node: the shipped pod's container `fetch` asks a mirror of the hub,
goes on where a connection broke, and the engine of the same pod serves what came."""

from __future__ import annotations

from collections.abc import AsyncIterator

import openai
import pytest
import pytest_asyncio
from support.model_hub import COMMIT, Hub, served

from pagefleet_local.base import paths
from pagefleet_local.demo.narration import Narrator
from pagefleet_local.demo.stage import sample
from pagefleet_local.fleet.install import Fleet
from pagefleet_local.fleet.kubectl import until
from pagefleet_local.fleet.view import View

pytestmark = [pytest.mark.e2e, pytest.mark.asyncio(loop_scope="module")]

NAMESPACE, NAME, MODEL = "fetching", "chat", "example/tiny"
WEIGHTS = "model.safetensors"
BROKEN_AT, CHUNK = 300_000, 64 << 10  # bytes of the weights; what a broken connection may cost of them


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """A checkpoint of a random model whose tokens are bytes."""
    # Imported here: torch and transformers take seconds, and whoever collects this folder's other tests needs neither.
    from support.engine.reference import tiny
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    tiny(folder, max_position_embeddings=2048)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: number for number, word in enumerate(["<unk>", "<s>", "</s>", *alphabet])}
    tokens = Tokenizer(models.BPE(words, [], unk_token="<unk>"))
    tokens.pre_tokenizer, tokens.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokens, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    fast.save_pretrained(folder)
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def namespace(fleet: Fleet) -> AsyncIterator[str]:
    await fleet.kubectl.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    yield NAMESPACE
    await fleet.kubectl.run("delete", "namespace", NAMESPACE, "--wait=true", "--timeout=180s")


async def test_a_pod_fetches_its_model_from_a_mirror_and_serves_it(
    fleet: Fleet, namespace: str, files: dict[str, bytes], narrator: Narrator
) -> None:
    assert len(files[WEIGHTS]) > 2 * BROKEN_AT
    hub = Hub(MODEL, files, breaks={WEIGHTS: [BROKEN_AT]}, held_after=BROKEN_AT)
    document = sample()
    document["metadata"] = {"name": NAME, "namespace": namespace}
    document["spec"]["model"] = {"source": f"hf://{MODEL}@{COMMIT}", "servedName": "tiny", "maxLength": 2048}

    async def view() -> View:
        read = await fleet.kubectl.get("inferenceservice", NAME, namespace)
        assert read is not None
        return View(read)

    async def is_fetching() -> bool:
        return (await view()).condition("ModelFetched").get("reason") == "Fetching"

    async def is_served() -> bool:
        narrator.live((seen := await view()).line())
        return seen.is_true("ModelFetched") and seen.is_true("Ready")

    with served(hub, paths.layout().node_ip):
        document["spec"]["engine"]["env"] = [{"name": "HF_ENDPOINT", "value": hub.endpoint}]
        await fleet.kubectl.apply(document)
        await until(is_fetching, timeout=60, what="the condition tells that the model is being fetched")
        hub.held.set()
        await until(is_served, timeout=120, what="the model is fetched and served")
        first, second = (asked for _, asked, _ in hub.requests(f"/store/{WEIGHTS}"))
        assert first == "" and BROKEN_AT - CHUNK < int(second.removeprefix("bytes=").removesuffix("-")) <= BROKEN_AT
    async with openai.AsyncOpenAI(
        base_url=f"{fleet.gateway}/{namespace}/{NAME}/v1", api_key="unused", max_retries=0
    ) as client:
        answer = await client.completions.create(model="tiny", prompt="hello", max_tokens=8, temperature=0)
    assert answer.usage is not None and answer.usage.completion_tokens > 0
