"""Published traces are read by their columns; what is no trace is refused with the line and what is allowed.

The sample files are synthetic, in the formats of BurstGPT and of the Azure LLM inference traces.
"""

from pathlib import Path

import pytest

from pagefleet_simulator.fleet.request import Arrival
from pagefleet_simulator.traces.replay import TraceError, parse, read

DATA = Path(__file__).resolve().parents[2] / "data"


def test_burstgpt_begins_at_its_first_request_and_leaves_failures_out() -> None:
    replay = read(DATA / "burstgpt-synthetic.csv")
    assert replay.skipped == 1
    assert replay.trace.arrivals[0] == Arrival(0.0, 472, 18)
    assert [arrival.at for arrival in replay.trace.arrivals] == [0, 40, 56, 113]


def test_burstgpt_rows_of_one_model() -> None:
    replay = read(DATA / "burstgpt-synthetic.csv", model="GPT-4")
    assert [(one.at, one.prompt, one.output) for one in replay.trace.arrivals] == [(0, 417, 276), (57, 50, 12)]


def test_azure_times_have_seven_decimals() -> None:
    replay = read(DATA / "azure-llm-synthetic.csv")
    assert [round(arrival.at, 4) for arrival in replay.trace.arrivals] == [0, 4.3146, 60]
    assert replay.trace.arrivals[2].prompt == 879


def test_azure_2024_times_have_an_offset() -> None:
    lines = [
        "TIMESTAMP,ContextTokens,GeneratedTokens",
        "2024-05-10 00:00:00.009930+00:00,2162,5",
        "2024-05-10 00:00:01,9,8",
    ]
    assert round(parse("t", lines).trace.arrivals[1].at, 4) == 0.9901


def test_speed_compresses_time() -> None:
    replay = read(DATA / "azure-llm-synthetic.csv", speed=10)
    assert round(replay.trace.arrivals[-1].at, 4) == 6.0
    assert replay.trace.seconds == pytest.approx(7.0)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a,b", "1,2"], "first line must name"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens", "yesterday,1,2"], "line 2"),
        (["TIMESTAMP,ContextTokens,GeneratedTokens"], "no request"),
        (["Timestamp,Model,Request tokens,Response tokens", "1,ChatGPT,2"], "line 2"),
        (
            ["Timestamp,Request tokens,Response tokens", "0,1,2", "1700000000000000000,1,2"],
            "at most 366 are simulated: are its times seconds",
        ),
        (
            ["Timestamp,Request tokens,Response tokens", "0,1e300,2"],
            "line 2: a prompt and an answer have at most 10000000 tokens",
        ),
        (["Timestamp,Model,Request tokens,Response tokens", '1,"' + "x" * 200_000], "line 2: field larger"),
    ],
)
def test_what_is_no_trace_is_refused(lines: list[str], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        parse("t", lines)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(TraceError, match="No such file"):
        read(Path("/nowhere.csv"))


@pytest.mark.parametrize("row", ["nan,10,5", "inf,10,5", "0,inf,5", "0,10,nan"])
def test_numbers_that_are_none_are_named_by_their_line(row: str) -> None:
    with pytest.raises(TraceError, match="trace, line 3"):
        parse("trace", ["Timestamp,Request tokens,Response tokens\n", "0,10,5\n", f"{row}\n"])
