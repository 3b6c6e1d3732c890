"""`pagefleet bench`: open-loop load on an OpenAI-compatible server, its latencies, and how they differ from before."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import signal
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Target
from pagefleet_cli.base.faults import Fault, explained, fail
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import show, terminal
from pagefleet_cli.bench import picture, store
from pagefleet_cli.bench.profile import Lengths, Planned, Profile, ProfileError, checked, parse, plan
from pagefleet_cli.bench.report import comparison, report
from pagefleet_cli.bench.requests import Endpoint
from pagefleet_cli.bench.result import compact, written
from pagefleet_cli.bench.run import Progress as Told
from pagefleet_cli.bench.run import Run, run
from pagefleet_cli.bench.target import served_model, through_gateway, url_of


def bench(
    url: Annotated[str | None, typer.Option(help="The server, or with --service the gateway.")] = None,
    service: Annotated[str | None, typer.Option(help="NAMESPACE/NAME: through the gateway, as users meet it.")] = None,
    model: Annotated[str | None, typer.Option(help="The model's name; asked of the server when omitted.")] = None,
    profile: Annotated[str | None, typer.Option(help="The load as JSON (docs/cli.md), or @FILE.")] = None,
    requests: Annotated[int | None, typer.Option("--requests", help="How many; overrides the profile.")] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second; overrides the profile.")] = None,
    prompt: Annotated[int | None, typer.Option("--prompt-tokens", help="Median; overrides the profile.")] = None,
    answer: Annotated[int | None, typer.Option("--output-tokens", help="Median; overrides the profile.")] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed sends the same requests at the same times.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Chat completions instead of completions.")] = False,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Answers of full length.")] = True,
    key_file: Annotated[Path | None, typer.Option("--api-key-file", help="A file with the server's API key.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for one request.")] = 120.0,
    save: Annotated[str | None, typer.Option(help="Keep the run under this name.")] = None,
    compare: Annotated[str | None, typer.Option(help="NAME or NAME@DAY: a kept run to compare with.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the distributions into this .svg, .png or .pdf.")] = None,
    result_file: Annotated[Path | None, typer.Option(help="Compact JSON of at most 4096 bytes.")] = None,
    output: options.Format = Output.TABLE,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Measure a server under open-loop load. Exit code 1 when no request went well, else 0.

    Latency counts from when a request was meant to be sent, so that a slow server cannot slow its own measurement down.
    """
    with explained():
        wanted = _profile(profile, requests, rate, prompt, answer, seed)
        if plot:
            picture.check(plot)
        before = store.load(compare, store.folder()) if compare else None
        endpoint = _endpoint(url, service, model, key_file, Target(namespace, kubeconfig, context))
        endpoint = replace(endpoint, chat=chat, ignore_eos=ignore_eos)
        started = datetime.datetime.now(datetime.UTC).isoformat()
        found = _measured(endpoint, plan(wanted), timeout)
        if result_file:
            _write(result_file, found)
        kept = store.Kept(found, wanted, endpoint.url, endpoint.model, started)
        where = store.save(save, kept, store.folder()) if save else None
        if plot:
            picture.draw(plot, found, before[1].run if before else None, f"{endpoint.model} at {endpoint.url}")
    tables = [report(found, wanted)]
    if before:
        name, earlier = before
        tables.append(comparison(earlier.run, found, name, store.unlike(earlier, endpoint.model, wanted)))
    show(output, compact(found), lambda: tables)
    if where and output in (Output.TABLE, Output.WIDE):
        terminal().print(f"kept in {where}", markup=False)
    if found.samples and all(sample.error for sample in found.samples):
        fail("not one request went well")


def _profile(
    text: str | None, requests: int | None, rate: float | None, prompt: int | None, answer: int | None, seed: int | None
) -> Profile:
    try:
        if text and text.startswith("@"):
            text = Path(text[1:]).read_text()
        found = parse(text) if text else Profile()
        found = replace(
            found,
            requests=found.requests if requests is None else requests,
            rate=found.rate if rate is None else rate,
            seed=found.seed if seed is None else seed,
        )
        if prompt is not None:
            found = replace(found, prompt_tokens=_around(found.prompt_tokens, prompt))
        if answer is not None:
            found = replace(found, output_tokens=_around(found.output_tokens, answer))
        return checked(found)
    except OSError as error:
        raise Fault(f"--profile: {error}") from error
    except ProfileError as error:
        raise Fault(str(error)) from error


def _around(lengths: Lengths, median: int) -> Lengths:
    """The same shape around another median."""
    return replace(lengths, median=median, max=max(1, round(lengths.max * median / lengths.median)))


def _endpoint(
    url: str | None, service: str | None, model: str | None, key_file: Path | None, target: Target
) -> Endpoint:
    try:
        key = key_file.read_text().strip() if key_file else ""
    except OSError as error:
        raise Fault(f"--api-key-file: {error}") from error
    if service:
        address, served = through_gateway(service, url and url_of(url).removesuffix("/v1"), target)
        return Endpoint(address, model or served, key=key)
    if not url:
        raise Fault("what is to be measured? Give --url, or --service NAMESPACE/NAME")
    address = url_of(url)
    return Endpoint(address, model or served_model(address, key), key=key)


def _measured(endpoint: Endpoint, planned: Sequence[Planned], timeout: float) -> Run:
    """Runs the load; Ctrl-C ends it early and keeps what there is."""

    async def go(told: Told) -> Run:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        return await run(endpoint, planned, timeout, stop, told)

    with _bar(len(planned)) as told:
        return asyncio.run(go(told))


@contextlib.contextmanager
def _bar(total: int) -> Iterator[Told]:
    """A progress bar on standard error, where that is a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=total, rate="")

        def told(ended: int, flying: int) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f}/s" if speed else ""
            bar.update(task, completed=ended, rate=f"{rate} {flying} in flight")

        yield told


def _write(path: Path, found: Run) -> None:
    try:
        path.write_bytes(written(compact(found)))
    except OSError as error:
        raise Fault(f"--result-file: {path} cannot be written: {error.strerror or error}") from error
