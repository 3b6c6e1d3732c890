"""Stands in for the engine process: `python -m bench.apibench.stub FD CONFIG`. Each open request gets one token a step.

The tokens are those of an English text, by the tokenizer of the model that CONFIG names; a step lasts STEP_SECONDS.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagefleet_engine.core.messages import Abort, Add, EngineStep, Frames, Ready, frame, to_engine
from pagefleet_engine.core.requests import EngineConfig, EngineRequest, EngineStats, TokenOutput

STEP_SECONDS = 0.02
TOKENS = "PAGEFLEET_BENCH_TOKENS"  # a file with the token ids of the text, as JSON
READ_BYTES = 1 << 20


@dataclass
class Open:
    request: EngineRequest
    begun: bool = False
    left: int = 0


def output(one: Open, token: int) -> TokenOutput:
    one.left -= 1
    first = not one.begun
    one.begun = True
    reason = None if one.left else "length"
    prompt = len(one.request.prompt_token_ids)
    return TokenOutput(one.request.request_id, (token,), reason, prompt, 0, 0.001 if first else None)


def main() -> int:
    connection = socket.socket(fileno=int(sys.argv[1]))
    config = msgspec.json.decode(sys.argv[2], type=EngineConfig)
    tokens = msgspec.json.decode(Path(os.environ[TOKENS]).read_bytes(), type=list[int])
    stats = EngineStats(0, 0, config.num_pages or 4096, 0, 0, 0, 0, 0, 0)
    described = dict.fromkeys(("architecture", "kernels", "kv_cache_dtype", "weights"), "stub")
    connection.sendall(frame(Ready(8192, 65536, 576, described, stats)))
    frames, received, step, opened = Frames(), 0, 0, dict[str, Open]()
    due = time.monotonic()
    while True:
        wait = max(0.0, due - time.monotonic()) if opened else None
        if select.select([connection], [], [], wait)[0]:
            data = connection.recv(READ_BYTES)
            if not data:
                return 0
            for body in frames.feed(data):
                received += 1
                match to_engine.decode(body):
                    case Add(request):
                        opened[request.request_id] = Open(request, left=request.sampling.max_tokens)
                    case Abort(request_id, _):
                        opened.pop(request_id, None)
                    case _:
                        pass
            continue
        due = max(due + STEP_SECONDS, time.monotonic())
        step += 1
        outputs = [output(one, tokens[(step + place) % len(tokens)]) for place, one in enumerate(opened.values())]
        opened = {name: one for name, one in opened.items() if one.left > 0}
        connection.sendall(frame(EngineStep(outputs, stats, STEP_SECONDS, 0, len(outputs), received)))


if __name__ == "__main__":
    sys.exit(main())
