"""Protects the options that an OpenAI client has for an answer: several choices, log probabilities, the prompt's echo,
sampling. The engine is real, and the client is the official one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.engine.api_process import NAME, Serving, make_adapter, make_model, serving

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder: Path = tmp_path_factory.mktemp("features")
    adapter = make_adapter(folder / "adapter")
    names = ("--served-model-name=alias", f"--lora-adapter=tuned={adapter}")
    with serving(make_model(folder / "model"), folder / "termination", "--max-model-len=2048", *names) as running:
        yield running


def complete(served: Serving, **parameters: Any) -> dict[str, Any]:
    asked = {"model": NAME, "prompt": "hello", "max_tokens": 12, "temperature": 0, "ignore_eos": True, **parameters}
    return served.answer(COMPLETION, asked)


def texts(document: dict[str, Any]) -> list[str]:
    assert [choice["index"] for choice in document["choices"]] == list(range(len(document["choices"])))
    return [choice["text"] for choice in document["choices"]]


def test_n_answers_differ_are_indexed_and_all_counted(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=NAME, messages=HI, n=4, seed=3, temperature=1.5, max_tokens=8, extra_body={"ignore_eos": True}
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert len({choice.message.content for choice in answer.choices}) == 4
    assert answer.usage is not None and answer.usage.completion_tokens == 32


def test_n_streams_interleave_and_equal_the_whole_answers(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "messages": HI, "n": 3, "seed": 3, "temperature": 1.5, "max_tokens": 8}
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    streamed, order, roles, ends = {0: "", 1: "", 2: ""}, [], [], []
    for chunk in client.chat.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}):
        for choice in chunk.choices:
            order.append(choice.index)
            streamed[choice.index] += choice.delta.content or ""
            roles += [choice.index] if choice.delta.role else []
            ends += [choice.finish_reason] if choice.finish_reason else []
    assert streamed == {choice.index: choice.message.content for choice in whole.choices}
    assert sorted(roles) == [0, 1, 2] and ends == ["length"] * 3
    assert order != sorted(order)


def test_a_seed_gives_the_same_answer_alone_and_among_others(served: Serving) -> None:
    asked = {"temperature": 1.5, "seed": 9}
    alone = complete(served, **asked)
    several = complete(served, **asked, prompt=["hello", "other", "third"], n=2)
    assert texts(alone)[0] == texts(several)[0]
    assert texts(alone) != texts(complete(served, temperature=1.5, seed=10))


def test_several_prompts_are_answered_in_their_order(served: Serving) -> None:
    single = [texts(complete(served, prompt=prompt))[0] for prompt in ("one", "two", "three")]
    together = complete(served, prompt=["one", "two", "three"], n=2)
    assert texts(together) == [text for text in single for _ in range(2)]
    assert together["usage"]["prompt_tokens"] == 11
    tokens = [served.answer("/tokenize", {"prompt": prompt})["tokens"] for prompt in ("one", "two", "three")]
    assert texts(complete(served, prompt=tokens)) == single


def test_the_best_of_several_answers_have_the_highest_mean_logprob(served: Serving) -> None:
    asked = {"temperature": 1.2, "seed": 5, "logprobs": 0}
    every = complete(served, **asked, n=6)
    ranked = sorted(
        every["choices"], key=lambda c: -sum(c["logprobs"]["token_logprobs"]) / len(c["logprobs"]["token_logprobs"])
    )
    best = complete(served, **asked, n=2, best_of=6)
    assert texts(best) == [choice["text"] for choice in ranked[:2]]
    assert best["usage"]["completion_tokens"] == 72
    silent = complete(served, temperature=1.2, seed=5, n=2, best_of=6)
    assert texts(silent) == texts(best) and silent["choices"][0]["logprobs"] is None


def test_chat_logprobs_are_openais_objects_whole_and_streamed(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "messages": HI, "max_tokens": 6, "temperature": 0, "logprobs": True, "top_logprobs": 3}
    whole = client.chat.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0]
    assert whole.logprobs is not None and whole.logprobs.content is not None
    assert "".join(entry.token for entry in whole.logprobs.content) == whole.message.content
    for entry in whole.logprobs.content:
        assert bytes(entry.bytes or []).decode() == entry.token
        assert len(entry.top_logprobs) == 3
        # Greedy: the chosen one is the most likely.
        assert entry.top_logprobs[0].token == entry.token
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob)
        assert entry.logprob <= 0
    streamed = [
        entry
        for chunk in client.chat.completions.create(**asked, stream=True, extra_body={"ignore_eos": True})
        for choice in chunk.choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or []
    ]
    assert [entry.token for entry in streamed] == [entry.token for entry in whole.logprobs.content]
    none = client.chat.completions.create(model=NAME, messages=HI, max_tokens=2)
    assert none.choices[0].logprobs is None


def test_completion_logprobs_have_offsets_that_cut_the_text(served: Serving) -> None:
    choice = complete(served, logprobs=2, n=2, temperature=1.0, seed=1)["choices"][1]
    logprobs = choice["logprobs"]
    for token, offset, likely, logprob in zip(
        logprobs["tokens"], logprobs["text_offset"], logprobs["top_logprobs"], logprobs["token_logprobs"], strict=True
    ):
        assert choice["text"][offset:].startswith(token)
        assert likely[token] == logprob and 2 <= len(likely) <= 3
        assert sum(math.exp(value) for value in likely.values()) <= 1.0001
    zero = complete(served, logprobs=0)["choices"][0]["logprobs"]
    assert all(list(likely) == [token] for token, likely in zip(zero["tokens"], zero["top_logprobs"], strict=True))


def test_the_logprobs_of_a_cut_off_stop_string_are_cut_off_too(served: Serving) -> None:
    base = texts(complete(served, max_tokens=20))[0]
    stop = base[8:11]
    at = base.index(stop)
    choice = complete(served, max_tokens=20, stop=stop, logprobs=0)["choices"][0]
    assert (choice["text"], "".join(choice["logprobs"]["tokens"])) == (base[:at], base[:at])
    included = complete(served, max_tokens=20, stop=stop, logprobs=0, include_stop_str_in_output=True)["choices"][0]
    assert (included["text"], "".join(included["logprobs"]["tokens"])) == (base[: at + 3], base[: at + 3])
    assert included["finish_reason"] == "stop"


def test_min_tokens_outlasts_stop_strings_and_stop_tokens(served: Serving) -> None:
    base = texts(complete(served, max_tokens=20))[0]
    stop = next(letter for letter in base[4:15])
    for parameters in ({"stop": stop}, {"stop_token_ids": [3 + ord(stop) - 33]}):
        short = complete(served, max_tokens=20, **parameters)["choices"][0]
        long = complete(served, max_tokens=20, **parameters, min_tokens=20)
        assert short["finish_reason"] == "stop" and len(short["text"]) < 20
        assert long["usage"]["completion_tokens"] == 20


@pytest.mark.parametrize("prompt", ["hello you", [5, 6, 7]])
def test_echo_gives_the_prompt_back_with_its_logprobs(served: Serving, prompt: Any) -> None:
    echoed = "hello you" if isinstance(prompt, str) else "#$%"
    plain = complete(served, prompt=prompt, echo=True)
    assert texts(plain)[0].startswith(echoed)
    choice = complete(served, prompt=prompt, echo=True, logprobs=1)["choices"][0]
    echoed_logprobs = choice["logprobs"]
    assert "".join(echoed_logprobs["tokens"]) == choice["text"] == texts(plain)[0]
    assert echoed_logprobs["token_logprobs"][0] is None and echoed_logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in echoed_logprobs["token_logprobs"][1:])
    assert echoed_logprobs["text_offset"] == list(range(len(choice["text"])))
    # What lm-eval asks to score a text: no answer at all.
    scored = complete(served, prompt=prompt, echo=True, logprobs=1, max_tokens=0)
    assert scored["choices"][0]["text"] == echoed
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == echoed_logprobs["token_logprobs"][: len(echoed)]
    assert scored["usage"]["completion_tokens"] == 0


def test_a_streamed_echo_equals_the_whole_one(client: openai.OpenAI) -> None:
    asked = {"model": NAME, "prompt": ["ab", "cd"], "echo": True, "logprobs": 0, "max_tokens": 4, "temperature": 0}
    whole = client.completions.create(**asked, extra_body={"ignore_eos": True})
    parts: dict[int, str] = {0: "", 1: ""}
    offsets: dict[int, list[int]] = {0: [], 1: []}
    for chunk in client.completions.create(**asked, stream=True, extra_body={"ignore_eos": True}):
        for choice in chunk.choices:
            parts[choice.index] += choice.text
            if choice.logprobs is not None:
                offsets[choice.index] += choice.logprobs.text_offset or []
    assert parts == {choice.index: choice.text for choice in whole.choices}
    assert offsets == {0: list(range(6)), 1: list(range(6))}


def test_prompt_logprobs_are_vllms(served: Serving) -> None:
    document = complete(served, prompt="abc", prompt_logprobs=1)
    prompt_logprobs = document["choices"][0]["prompt_logprobs"]
    assert prompt_logprobs[0] is None and len(prompt_logprobs) == 3
    entry = prompt_logprobs[1][str(3 + ord("b") - 33)]
    assert entry["decoded_token"] == "b" and entry["logprob"] <= 0 and entry["rank"] >= 1
    chat = served.answer(CHAT, {"model": NAME, "messages": HI, "max_tokens": 1, "prompt_logprobs": 0})
    assert chat["prompt_logprobs"][0] is None and len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]


def test_bias_and_penalties_change_what_is_chosen(served: Serving) -> None:
    letter = 3 + ord("z") - 33
    assert texts(complete(served, logit_bias={str(letter): 100})) == ["z" * 12]
    base = texts(complete(served, max_tokens=40))[0]
    assert texts(complete(served, max_tokens=40, repetition_penalty=2.0))[0] != base
    forced = complete(served, logit_bias={str(letter): 30}, frequency_penalty=2, max_tokens=40)
    assert texts(forced)[0] != "z" * 40
    assert texts(complete(served, logit_bias={str(3 + ord(base[0]) - 33): -100}))[0][0] != base[0]


def test_stream_usage_is_null_until_the_end_or_counted_all_along(served: Serving) -> None:
    def chunks(**options: bool) -> list[dict[str, Any]]:
        asked = {"model": NAME, "prompt": "a", "max_tokens": 3, "ignore_eos": True, "stream": True}
        body = served.post(COMPLETION, {**asked, "stream_options": options}).body
        return [json.loads(line[6:]) for line in body.splitlines() if line.startswith(b"data: {")]

    final = chunks(include_usage=True)
    assert [chunk["usage"] for chunk in final[:-1]] == [None] * (len(final) - 1)
    assert final[-1]["usage"]["completion_tokens"] == 3 and final[-1]["choices"] == []
    counted = [chunk["usage"]["completion_tokens"] for chunk in chunks(continuous_usage_stats=True)]
    assert counted == sorted(counted) and counted[-1] == 3
    assert all("usage" not in chunk for chunk in chunks())


def test_aliases_and_adapters_are_models(client: openai.OpenAI, served: Serving) -> None:
    listed = {model.id: model for model in client.models.list()}
    assert list(listed) == [NAME, "alias", "tuned"]
    assert client.models.retrieve("tuned").model_dump()["parent"] == NAME
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
    base, alias, tuned = (complete(served, model=name) for name in (NAME, "alias", "tuned"))
    assert texts(base) == texts(alias) != texts(tuned)
    assert tuned["model"] == "tuned"


def test_a_final_message_is_continued(served: Serving) -> None:
    messages = [*HI, {"role": "assistant", "content": "I am"}]
    asked = {"messages": messages, "continue_final_message": True, "add_generation_prompt": False}
    tokens = served.answer("/tokenize", asked)["tokens"]
    prompt = served.answer("/detokenize", {"tokens": tokens})["prompt"]
    assert prompt.endswith("<|im_start|>assistant\nI am")
    by_chat = served.answer(CHAT, {"model": NAME, **asked, "max_tokens": 6, "temperature": 0, "ignore_eos": True})
    assert by_chat["choices"][0]["message"]["content"] == texts(complete(served, prompt=tokens, max_tokens=6))[0]


def test_a_cache_salt_keeps_prefixes_apart(served: Serving) -> None:
    def cached(salt: str | None) -> int:
        document = complete(served, prompt="a salted prompt of more than two pages", max_tokens=1, cache_salt=salt)
        count: int = document["usage"]["prompt_tokens_details"]["cached_tokens"]
        return count

    assert [cached("a"), cached("a"), cached("b"), cached(None), cached("b")] == [0, 32, 0, 0, 32]
