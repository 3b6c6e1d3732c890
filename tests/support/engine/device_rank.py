"""Run by test_device_parallel: an engine of two ranks on the CPU answers prompts, then prints tokens as JSON. No test here.

`python tests/support/engine/device_rank.py MODEL REQUESTS OPTIONS`; with OPTIONS {"kill": true} its worker is killed in the middle, with
a process's id that process, with "self" itself. With "stranger" a client that is no rank connects first. With "draft" (a method and a model) each step that may have draft tokens has four.
With "later" (an adapter's name, its folder, and tokens) that adapter is loaded in the middle, and a request "later" asks for it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from pagefleet_engine.core.requests import EngineConfig, EngineRequest, SamplingParams, Speculation
from pagefleet_engine.runner.device.engine import DeviceEngine


def worker() -> int:
    """Return the process id of the only child."""
    return int(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()[0])


def knock(port: int) -> None:
    """Send bytes that no rank sends, as soon as the engine listens."""
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port)) as connection:
                connection.sendall(b"GET / HTTP/1.1\r\n\r\n")
                return
        except ConnectionRefusedError:
            time.sleep(0.02)


def draft_always(engine: DeviceEngine) -> None:
    """Let the engine draft whether that pays or not."""
    drafting = engine._drafting
    assert drafting is not None

    def plan(answers: int, offers: Sequence[tuple[float, int]]) -> list[int]:
        return [many for _, many in offers]

    drafting.speculator.planner.plan = plan  # type: ignore[method-assign]
    drafting.turns.in_turn = lambda answers: True  # type: ignore[method-assign]


def main() -> None:
    model, prompts, options = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
    kill, stranger = options.pop("kill", False), options.pop("stranger", False)
    later: list[Any] = options.pop("later", [])
    sleep_levels: list[int] = options.pop("sleep_levels", [])
    torch.set_num_threads(1)
    if draft := options.pop("draft", None):
        options["speculation"] = Speculation(draft[0], 4, draft[1])
    settings: dict[str, Any] = {
        "max_model_len": 256, "num_pages": 64, "kernels": "reference", "max_num_seqs": 8, "max_num_batched_tokens": 48,
        "tensor_parallel_size": 2, **options,
    }  # fmt: skip
    if stranger:
        threading.Thread(target=knock, args=(settings["master_port"],)).start()
    engine = DeviceEngine(EngineConfig(model=model, **settings), torch.device("cpu"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for level in sleep_levels:
        engine.sleep(level)
        engine.wake()
    if draft:
        draft_always(engine)
    answers: dict[str, list[int]] = {}
    for index, prompt in enumerate(prompts):
        given = {"max_tokens": 10, "ignore_eos": True, **(prompt if isinstance(prompt, dict) else {})}
        tokens, adapter = tuple(given.pop("tokens", prompt)), given.pop("adapter", None)
        engine.add(EngineRequest(str(index), tokens, SamplingParams(**given), 0.0, adapter=adapter))
    steps = 0
    while engine.has_work():
        for output in engine.step(0.0):
            answers.setdefault(output.request_id, []).extend(output.token_ids)
        steps += 1
        if later and steps == 3:
            name, folder, tokens = later
            engine.load_adapter(name, folder)
            sampling = SamplingParams(max_tokens=10, ignore_eos=True)
            engine.add(EngineRequest("later", tuple(tokens), sampling, 0.0, adapter=name))
        if kill and steps == 3:
            os.kill({True: worker, "self": os.getpid}.get(kill, lambda: int(kill))(), signal.SIGKILL)
    engine.close()
    sys.stdout.write(f"{engine.stats().accepted_tokens} draft tokens were accepted\n")
    sys.stdout.write(json.dumps(answers) + "\n")


if __name__ == "__main__":
    main()
