"""Protects the start of a model: the real fetching process, against a server with the hub's layout, ends with files whose checksums are
right, whatever breaks on the way; it goes on after its own death; it tells how far it is in the words that the operator reads; and the
engine reads the result."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import model_fetching
from support.engine.api_process import free_port
from support.model_hub import COMMIT, Hub, served

from pagefleet_contract.model_fetch import EXIT_AGAIN
from pagefleet_engine.model.checkpoint.source import Format, resolve

NAME = "example/tiny"
URI = f"hf://{NAME}"
SIZE = 3_000_000
CONFIGURATION_EXIT = 78
PRESENT = ("config.json", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "tokenizer.json")


def weights(seed: int, size: int = SIZE) -> bytes:
    return random.Random(seed).randbytes(size)


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {
        "config.json": b'{"model_type": "llama"}',
        "model-00001-of-00002.safetensors": weights(1),
        "model-00002-of-00002.safetensors": weights(2, 1_000_000),
        "tokenizer.json": b"{}",
        "pytorch_model.bin": b"a pickle",
        "modeling.py": b"print('code')",
        "original/consolidated.safetensors": weights(3),
        ".gitattributes": b"",
    }
    with served(Hub(NAME, files)) as one:
        yield one


class Fetching(model_fetching.Fetching):
    """Starts that fetch from the hub."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        super().__init__(folder, URI, {"HF_ENDPOINT": hub.endpoint})
        self.hub = hub


@pytest.fixture
def fetching(hub: Hub, tmp_path: Path) -> Fetching:
    return Fetching(hub, tmp_path)


def complete(fetching: Fetching) -> bool:
    return fetching.present() == {name: fetching.hub.files[name] for name in PRESENT}


def test_a_model_is_there_for_the_engine_and_holds_no_code(fetching: Fetching) -> None:
    assert fetching.run()[0] == 0
    assert complete(fetching)
    assert resolve(f"file://{fetching.model}").format is Format.SAFETENSORS


def test_connections_that_break_are_resumed_where_they_ended(fetching: Fetching) -> None:
    fetching.hub.breaks[PRESENT[1]] = [900_000, 700_000, 200_000]
    assert fetching.run()[0] == 0
    assert complete(fetching)
    resumed = [asked for _, asked, _ in fetching.hub.requests("/store/") if asked]
    assert len(resumed) == 3
    assert fetching.hub.sent <= 4_000_000 + 3 * 65536  # what was in flight at a break, and nothing else, came twice


def test_a_server_without_ranges_is_read_again(fetching: Fetching) -> None:
    fetching.hub.ranges, fetching.hub.breaks[PRESENT[1]] = False, [1_000_000]
    assert fetching.run()[0] == 0
    assert complete(fetching)


def test_a_start_after_a_death_goes_on_and_the_page_tells_how_far_it_is(fetching: Fetching) -> None:
    fetching.hub.held_after = 2_000_000
    with fetching.started():
        reading = fetching.read_until(1_500_000)
        assert reading.size == sum(len(fetching.hub.files[name]) for name in PRESENT)
        assert reading.fetched < reading.size
    kept = sorted(path.stat().st_size for path in fetching.folder.rglob("*.partial"))
    assert max(kept) > 0
    earlier, fetching.hub.held_after = len(fetching.hub.requests("/store/")), None
    fetching.hub.held.set()
    assert fetching.run()[0] == 0
    assert complete(fetching)
    resumed = [asked for _, asked, _ in fetching.hub.requests("/store/")[earlier:]]
    assert sorted(int(asked.removeprefix("bytes=").removesuffix("-") or 0) for asked in resumed) == kept


def test_the_container_of_a_deleted_pod_ends_at_once(fetching: Fetching) -> None:
    fetching.hub.held_after = 2_000_000
    with fetching.started() as process:
        fetching.read_until(1_500_000)
        process.terminate()
        assert process.wait(10) == EXIT_AGAIN  # with a handler of its own: process 1 of a container has no other


def test_bytes_that_are_wrong_once_are_fetched_again(fetching: Fetching) -> None:
    name = "model-00002-of-00002.safetensors"
    fetching.hub.damaged[name] = 1
    assert fetching.run()[0] == 0
    assert complete(fetching)


def test_a_file_that_stays_wrong_is_never_linked(fetching: Fetching) -> None:
    name = "model-00002-of-00002.safetensors"
    fetching.hub.damaged[name] = 9
    status, _ = fetching.run()
    assert status == CONFIGURATION_EXIT
    assert not fetching.model.exists()
    reason, field, message = fetching.told(status)
    assert (reason, field) == ("ModelNotFound", "spec.model.source")
    assert message.startswith(f"{name} arrives with the SHA-256 ")


def test_a_hub_that_does_not_answer_is_told_and_asked_again_by_the_next_start(fetching: Fetching) -> None:
    fetching.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    status, _ = fetching.run()
    assert status == EXIT_AGAIN
    reason, field, message = fetching.told(status)
    assert (reason, field) == ("FetchInterrupted", "spec.model.source")
    assert "does not answer" in message and message.endswith("what has arrived is kept")


def test_a_token_is_sent_to_the_hub_and_not_to_the_store(fetching: Fetching) -> None:
    fetching.hub.token = "hf_secret"
    status, output = fetching.run()
    assert status == CONFIGURATION_EXIT
    assert "HF_TOKEN" in fetching.told(status)[2]
    fetching.environment["HF_TOKEN"] = "hf_secret"
    status, more = fetching.run()
    assert status == 0
    assert {authorization for _, _, authorization in fetching.hub.requests("/store/")} == {""}
    assert "hf_secret" not in output + more


def test_a_model_that_is_not_there_is_the_spec_s_fault(fetching: Fetching) -> None:
    status, _ = fetching.run("hf://example/other@v1")
    assert status == CONFIGURATION_EXIT
    assert "has no such model or revision (404)" in fetching.told(status)[2]


def test_a_kept_model_needs_no_second_transfer_and_no_hub_where_it_is_pinned(fetching: Fetching) -> None:
    assert fetching.run()[0] == 0
    sent = fetching.hub.sent
    assert fetching.run()[0] == 0
    assert fetching.hub.sent == sent
    asked = len(fetching.hub.asked)
    assert fetching.run(f"{URI}@{COMMIT}")[0] == 0
    assert len(fetching.hub.asked) == asked
    fetching.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    status, output = fetching.run()
    assert status == 0
    assert f"the kept version {COMMIT} is used" in output


def test_a_commit_that_is_not_kept_is_never_replaced_by_another_version(fetching: Fetching) -> None:
    assert fetching.run()[0] == 0
    fetching.environment["HF_ENDPOINT"] = f"http://127.0.0.1:{free_port()}"
    status, output = fetching.run(f"{URI}@{COMMIT[::-1]}")
    assert status == EXIT_AGAIN, output
    assert "is used" not in output


def test_two_pods_that_share_a_claim_fetch_a_model_once(fetching: Fetching) -> None:
    other = Fetching(fetching.hub, fetching.folder)
    with fetching.started() as one, other.started() as two:
        assert [one.wait(300), two.wait(300)] == [0, 0]
    assert complete(fetching)
    assert fetching.hub.sent == 4_000_000
