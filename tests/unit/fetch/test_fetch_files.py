"""Protects which files of a model are fetched and how they are checked: no code, no path out of the model's folder, no lie about a size."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from pagefleet_fetch.files import Fault, Interrupted, Model, RemoteFile, chosen
from pagefleet_fetch.hub import Hub, listed
from pagefleet_fetch.main import parser, persist
from pagefleet_fetch.progress import Meter, rate
from pagefleet_fetch.transfer import PAUSES, fetch, on_disk, partial_of
from pagefleet_operator.domain.runtimes.uris import link_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = b"0123456789" * 10
FILE = RemoteFile("a.safetensors", len(DATA), hashlib.sha256(DATA).hexdigest())


def names(*given: str) -> list[str]:
    return [file.name for file in chosen("hf://a/b", [RemoteFile(name, 1) for name in (*given, "m.safetensors")])]


def test_weights_tokenizers_and_configurations_are_fetched_and_nothing_that_runs() -> None:
    wanted = ["config.json", "tokenizer.model", "merges.txt", "chat_template.jinja", "sub/x.json", "qwen.tiktoken"]
    others = ["pytorch_model.bin", "modeling_x.py", "x.pt", "x.pkl", "README.md", ".git/config.json", "consolidated.safetensors",
              "original/params.json", "x.ckpt", "x.onnx", "run.sh"]  # fmt: skip
    assert names(*wanted, *others) == [*wanted, "m.safetensors"]


@pytest.mark.parametrize("name", ["../x.json", "/etc/x.json", "a/../../x.json", "a\0.json", "x" * 600 + ".json"])
def test_a_name_that_leads_out_of_the_folder_is_refused(name: str) -> None:
    with pytest.raises(Fault, match="no path below the model"):
        names(name)


def test_a_model_of_pickles_only_is_refused() -> None:
    with pytest.raises(Fault, match=r"holds no \*\.safetensors"):
        chosen("hf://a/b", [RemoteFile("pytorch_model.bin", 1)])


@pytest.mark.parametrize(
    "uri", ["hf://", "hf://a/b/c", "hf://../b", "hf://a/b@", "hf://a/b@../x", "hf://a b", "hf://a/b?x=1", "hf://a/.."]
)
def test_a_uri_that_is_no_model_is_refused(uri: str) -> None:
    if uri == "hf://a/b@":  # an empty revision is none
        Hub(uri, {})
        return
    with pytest.raises(Fault) as refused:
        Hub(uri, {})
    assert refused.value.field == "spec.model.source"


def test_a_mirror_must_be_a_web_address() -> None:
    with pytest.raises(Fault) as refused:
        Hub("hf://a/b", {"HF_ENDPOINT": "file:///etc"})
    assert refused.value.field == "spec.engine.env"


def test_a_listing_has_sizes_and_hashes() -> None:
    sha = "a" * 64
    document = {"sha": COMMIT, "siblings": [
        {"rfilename": "x.json", "size": 3, "blobId": "b" * 40},
        {"rfilename": "m.safetensors", "size": 130, "blobId": "c" * 40, "lfs": {"sha256": sha, "size": 9, "pointerSize": 130}},
    ]}  # fmt: skip
    commit, (plain, large) = listed(document)
    assert commit == COMMIT
    assert (plain.size, plain.checksum) == (3, "b" * 40)
    assert (large.size, large.checksum) == (9, sha)


@pytest.mark.parametrize(
    "document",
    [
        {}, [], None, {"sha": "main", "siblings": []}, {"sha": COMMIT}, {"sha": COMMIT, "siblings": [{}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "x.json"}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "x.json", "size": -1}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "x.json", "size": True}]},
        {"sha": COMMIT, "siblings": [{"rfilename": "x", "size": 1, "lfs": {"size": 1, "sha256": "short"}}]},
    ],
)  # fmt: skip
def test_a_listing_of_another_form_is_none(document: Any) -> None:
    with pytest.raises((ValueError, KeyError, TypeError)):
        listed(document)


class Told:
    """A source that sends these blocks, or breaks at an Interrupted, start by start."""

    def __init__(self, *starts: list[bytes | Interrupted]) -> None:
        self.starts, self.offsets = list(starts), list[int]()

    def model(self) -> Model:
        raise NotImplementedError

    def read(self, file: RemoteFile, offset: int) -> Iterator[bytes]:
        self.offsets.append(offset)
        for block in self.starts.pop(0):
            if isinstance(block, Interrupted):
                raise block
            yield block


BREAK = Interrupted("broken")


def brought(source: Told, folder: Path, file: RemoteFile = FILE) -> list[float]:
    """The pauses that it took."""
    pauses: list[float] = []
    fetch(source, file, folder, Event(), pauses.append)
    return pauses


def test_a_broken_transfer_goes_on_at_its_byte(tmp_path: Path) -> None:
    source = Told([DATA[:30], BREAK], [DATA[30:60]], [DATA[60:]])
    assert brought(source, tmp_path) == [PAUSES[0], PAUSES[0]]
    assert source.offsets == [0, 30, 60]
    assert (tmp_path / FILE.name).read_bytes() == DATA


def test_what_an_earlier_process_has_brought_is_kept(tmp_path: Path) -> None:
    partial_of(tmp_path, FILE).write_bytes(DATA[:70])
    assert on_disk(tmp_path, [FILE]) == 70
    source = Told([DATA[70:]])
    brought(source, tmp_path)
    assert source.offsets == [70]
    assert on_disk(tmp_path, [FILE]) == len(DATA)
    assert [path.name for path in tmp_path.iterdir()] == [FILE.name]


def test_zeros_after_an_unclean_end_are_fetched_again(tmp_path: Path) -> None:
    partial_of(tmp_path, FILE).write_bytes(DATA[:50] + bytes(40))
    source = Told([DATA[90:]], [DATA])
    brought(source, tmp_path)
    assert source.offsets == [90, 0]
    assert (tmp_path / FILE.name).read_bytes() == DATA


def test_another_version_of_a_file_does_not_go_on_with_the_first_one(tmp_path: Path) -> None:
    partial_of(tmp_path, FILE).write_bytes(DATA[:50])
    other = RemoteFile(FILE.name, 3, hashlib.sha256(b"new").hexdigest())
    source = Told([b"new"])
    brought(source, tmp_path, other)
    assert source.offsets == [0]


def test_it_gives_up_when_nothing_comes_again_and_again(tmp_path: Path) -> None:
    pauses: list[float] = []
    source = Told([DATA[:10], BREAK], *([BREAK] for _ in range(len(PAUSES) + 1)))
    with pytest.raises(Interrupted):
        fetch(source, FILE, tmp_path, Event(), pauses.append)
    assert pauses == [PAUSES[0], *PAUSES]
    assert on_disk(tmp_path, [FILE]) == 10


def test_a_file_that_is_longer_than_told_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Fault, match="longer than the 100 bytes"):
        brought(Told([DATA + b"x"]), tmp_path)


def test_git_s_hash_is_that_of_a_blob(tmp_path: Path) -> None:
    known = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"  # git hash-object of "hello" without a line's end
    file = RemoteFile("x.json", 5, git_blob=known)
    brought(Told([b"hello"]), tmp_path, file)
    assert (tmp_path / "x.json").read_bytes() == b"hello"


def test_the_speed_is_that_of_the_last_minute() -> None:
    meter, done = Meter(), iter([0, 100, 200, 200, 200])
    meter.begin(1000, lambda: next(done))
    for now in (0.0, 10.0, 20.0, 75.0, 90.0):
        meter.tick(now)
    page = meter.page()
    assert "pagefleet_model_fetched_bytes 200\n" in page
    assert "pagefleet_model_fetch_bytes_per_second 0\n" in page
    assert rate([]) == rate([(1.0, 5)]) == rate([(1.0, 5), (1.0, 9)]) == 0.0
    assert rate([(0.0, 0), (10.0, 50)]) == 5.0


def test_no_speed_is_told_while_it_is_too_early_to_say_that_nothing_arrives() -> None:
    meter, done = Meter(), [0]
    meter.begin(1000, lambda: done[0])
    for now in (0.0, 1.0, 59.0):
        meter.tick(now)
        assert "per_second" not in meter.page()
    meter.tick(60.0)
    assert "pagefleet_model_fetch_bytes_per_second 0\n" in meter.page()
    meter.begin(1000, lambda: done[0])
    meter.tick(61.0)
    done[0] = 50
    meter.tick(62.0)
    assert "pagefleet_model_fetch_bytes_per_second 50\n" in meter.page()


def test_a_pod_of_a_group_waits_for_its_source_and_others_end() -> None:
    """LeaderWorkerSet creates a group again when any of its containers restarts, and its volumes with it."""
    ends, pauses = [Interrupted("the hub does not answer")] * 7, list[float]()

    def bring() -> None:
        if ends:
            raise ends.pop()

    with pytest.raises(Interrupted):
        persist(bring, keep_trying=False, pause=pauses.append)
    assert pauses == []
    persist(bring, keep_trying=True, pause=pauses.append)
    assert pauses == [10.0, 20.0, 40.0, 80.0, 160.0, 300.0]
    fault = Fault("spec.model.source", "there is no such model")

    def refuse() -> None:
        raise fault

    with pytest.raises(Fault):
        persist(refuse, keep_trying=True, pause=pauses.append)


@pytest.mark.parametrize(
    "uri",
    [
        "hf://org/name@main",
        "s3://weights/date=2026-01-31/llama",
        "gs://weights/a=b=c",
        "az://account/container/x=hf://y",
        f"oci://registry.example/a:1@sha256:{'0' * 64}/epoch=3",
    ],
)
def test_the_command_line_takes_what_the_operator_writes_for_any_source(uri: str) -> None:
    written = f"{link_name(uri)}={uri}"
    assert parser().parse_args(["--cache=/c", "--into=/i", written]).models == [(link_name(uri), uri)]


@pytest.mark.parametrize(
    "pair", ["hf://a/b", "x/y=hf://a/b", "=hf://a/b", "..=hf://a/b", "m=ftp://a", "m=hf:/a", "m", "m=", "="]
)
def test_the_command_line_takes_names_and_sources(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser().parse_args(["--cache=/c", "--into=/i", pair])
    assert "must be NAME=" in capsys.readouterr().err
