"""`pagefleet bench`: measures an OpenAI-compatible server under open-loop load and compares it with an earlier run."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from pagefleet_cli.base import options
from pagefleet_cli.base.cluster import Target
from pagefleet_cli.base.errors import CommandError, fail, readable_errors
from pagefleet_cli.base.options import Output
from pagefleet_cli.base.output import show, terminal
from pagefleet_cli.base.screen import Screen
from pagefleet_cli.bench import baseline, exports, loads, picture, store
from pagefleet_cli.bench.loads import Load
from pagefleet_cli.bench.profile import MOST, Lengths, Profile, ProfileError, Spread, checked, plan
from pagefleet_cli.bench.report import comparison, report
from pagefleet_cli.bench.requests import Endpoint
from pagefleet_cli.bench.result import compact, written
from pagefleet_cli.bench.run import Progress as OnProgress
from pagefleet_cli.bench.run import Run, client, run
from pagefleet_cli.bench.target import failing, served_model, through_gateway, url_of


def bench(
    url: Annotated[str | None, typer.Option(help="URL of the server; with --service, of the gateway.")] = None,
    service: Annotated[
        str | None, typer.Option(help="NAMESPACE/NAME: measure this service through the gateway, as users reach it.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="The model's name; read from the server's /v1/models when omitted.")
    ] = None,
    profile: Annotated[
        str | None,
        typer.Option(
            help="The load as JSON (docs/cli.md), or @FILE; also a config.yml of inference-perf, a scenario or data options of guidellm."
        ),
    ] = None,
    requests: Annotated[
        int | None, typer.Option("--requests", help="Number of requests; overrides the profile.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Requests per second; overrides the profile.")] = None,
    prompt: Annotated[
        int | None, typer.Option("--prompt-tokens", help="Median prompt length; overrides the profile.")
    ] = None,
    answer: Annotated[
        int | None, typer.Option("--output-tokens", help="Median answer length; overrides the profile.")
    ] = None,
    temperature: Annotated[
        float | None,
        typer.Option(help="Of sampling, 0 to 2; overrides the profile. The server's default when omitted."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="The same seed sends the same requests at the same times.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Send chat completions instead of completions.")] = False,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos/--no-ignore-eos", help="Ask for answers of the full length.")
    ] = True,
    key_file: Annotated[
        Path | None, typer.Option("--api-key-file", help="A file with the server's API key: its first line counts.")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Limit for one request, in seconds.")] = 120.0,
    save: Annotated[str | None, typer.Option(help="Save the run under this name.")] = None,
    compare: Annotated[
        str | None,
        typer.Option(
            help="NAME or NAME@DAY: a saved run to compare with; @PATH: a report of guidellm or inference-perf."
        ),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the distributions into this .svg, .png or .pdf.")] = None,
    result_file: Annotated[
        Path | None, typer.Option(help="Write a compact JSON result of at most 4096 bytes to this file.")
    ] = None,
    guidellm_report: Annotated[
        Path | None, typer.Option(help="Write the run into this file as a JSON report of guidellm.")
    ] = None,
    inference_perf_report: Annotated[
        Path | None, typer.Option(help="Write the run into this folder as the JSON reports of inference-perf.")
    ] = None,
    output: options.Format = Output.TABLE,
    namespace: options.Namespace = None,
    kubeconfig: options.Kubeconfig = None,
    context: options.Context = None,
) -> None:
    """Measure a server under open-loop load. Exit code 1 when every request failed, else 0.

    Latency counts from the intended start of a request, so that a slow server cannot slow its own measurement down.
    """
    with readable_errors():
        if not timeout <= MOST:
            raise CommandError(f"--timeout must be a number of seconds, at most {MOST}, not {timeout:g}")
        told = _load(
            profile, {"requests": requests, "rate": rate, "seed": seed, "temperature": temperature}, prompt, answer
        )
        load = told.profile
        _warn("--profile", "carried over", told.left)
        if plot:
            picture.check(plot)
        if save:
            store.check(save)
        if result_file and not result_file.absolute().parent.is_dir():
            raise CommandError(f"--result-file: there is no folder {result_file.absolute().parent}")
        foreign = baseline.read(Path(compare[1:])) if compare and compare.startswith("@") else None
        before = store.load(compare, store.folder()) if compare and not foreign else None
        if not service:
            url, model = url or told.url, model or told.model
        endpoint = _endpoint(url, service, model, key_file, Target(namespace, kubeconfig, context))
        endpoint = replace(
            endpoint, chat=chat or bool(told.chat), ignore_eos=ignore_eos and told.ignore_eos is not False
        )
        started = datetime.datetime.now(datetime.UTC).isoformat()
        result = _measured(endpoint, load, timeout)
        saved = store.SavedRun(result, load, endpoint.url, endpoint.model, started)
    title = f"{endpoint.model} at {endpoint.url}"
    lost: list[str] = []  # of the files; the result is shown all the same
    if result_file:
        _kept(lost, lambda: _write(result_file, result))
    if guidellm_report:
        left = _kept(lost, lambda: exports.guidellm(guidellm_report, saved)) or ()
        _warn("--guidellm-report", "measured, and null or -1 in the report", left)
    if inference_perf_report:
        left = _kept(lost, lambda: exports.inference_perf(inference_perf_report, saved)) or ()
        _warn("--inference-perf-report", "measured, and null in the report", left)
    path = _kept(lost, lambda: store.save(save, saved, store.folder())) if save else None
    if plot:
        _kept(lost, lambda: picture.draw(plot, result, before[1].run if before else None, title))
    tables = [report(result, load)]
    if before:
        name, earlier = before
        tables.append(comparison(earlier.run, result, name, store.unlike(earlier, endpoint.model, load)))
    if foreign:
        tables.append(comparison(foreign.before, result, foreign.name, (), foreign.notes))
    show(output, compact(result), lambda: tables)
    if path and output in (Output.TABLE, Output.WIDE):
        terminal().print(f"saved in {path}", markup=False)
    if lost:
        fail("; ".join(lost))
    if result.samples and all(sample.error for sample in result.samples):
        fail(f"all {len(result.samples)} requests failed: see the table of errors")


def _kept(lost: list[str], write: Callable[[], Any]) -> Any:
    """What `write` returns; None where it fails, and then `lost` has the cause."""
    try:
        return write()
    except CommandError as error:
        lost.append(str(error))
        return None


def _warn(option: str, what: str, names: Sequence[str]) -> None:
    """Name the fields that another tool's file has and this command has not, or the other way about."""
    if names:
        Screen(stderr=True).print(f"{option}: not {what}: {', '.join(names)}", style="yellow", markup=False)


def _load(text: str | None, given: dict[str, Any], prompt: int | None, answer: int | None) -> Load:
    """The load of `text` with the options that are not None."""
    try:
        if text and text.startswith("@"):
            text = Path(text[1:]).read_text()
        told = loads.read(text) if text else Load(Profile())
        chosen = told.profile
        if chosen.stages and (given["requests"] is not None or given["rate"] is not None):
            raise CommandError("--requests and --rate cannot override a profile with stages: change the stages")
        chosen = replace(chosen, **{name: value for name, value in given.items() if value is not None})
        if prompt is not None:
            chosen = replace(chosen, prompt_tokens=_around(chosen.prompt_tokens, prompt))
        if answer is not None:
            chosen = replace(chosen, output_tokens=_around(chosen.output_tokens, answer))
        return replace(told, profile=checked(chosen))
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--profile: {error}") from error
    except ProfileError as error:
        raise CommandError(str(error)) from error


def _around(lengths: Lengths | Spread, median: int) -> Lengths:
    """Move the distribution to another median and keep its shape. Raises CommandError for a shape that has another form."""
    if isinstance(lengths, Spread):
        raise CommandError(
            f"--prompt-tokens and --output-tokens move the median of a lognormal, and the profile has a {lengths.distribution} distribution"
        )
    return replace(lengths, median=median, max=max(1, round(lengths.max * min(median, MOST) / lengths.median)))


def _endpoint(
    url: str | None, service: str | None, model: str | None, key_file: Path | None, target: Target
) -> Endpoint:
    try:
        key = next(iter(key_file.read_text().split()), "") if key_file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--api-key-file: {error}") from error
    if service:
        address, served = through_gateway(service, url and url_of(url).removesuffix("/v1"), target)
        return Endpoint(address, model or served, key=key)
    if not url:
        raise CommandError("no server is named: give --url, or --service NAMESPACE/NAME")
    address = url_of(url)
    return Endpoint(address, model or served_model(address, key), key=key)


def _measured(endpoint: Endpoint, load: Profile, timeout: float) -> Run:
    """Check the endpoints, and run the load. Ctrl-C ends it early; the samples so far are the result."""
    planned = plan(load)

    async def go(progress: OnProgress) -> Run:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop.set)
        async with client(timeout) as session:
            failed = await failing(session, endpoint, load.endpoints)
        return replace(await run(endpoint, planned, timeout, stop, progress), failed_endpoints=failed)

    with _bar(len(planned)) as progress:
        return asyncio.run(go(progress))


@contextlib.contextmanager
def _bar(total: int) -> Iterator[OnProgress]:
    """A progress bar on standard error, where that is a terminal."""
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as bar:
        task = bar.add_task("", total=total, rate="")

        def advance(ended: int, in_flight: int) -> None:
            speed = bar.tasks[0].speed
            rate = f"{speed:.1f}/s" if speed else ""
            bar.update(task, completed=ended, rate=f"{rate} {in_flight} in flight")

        yield advance


def _write(path: Path, result: Run) -> None:
    try:
        path.write_bytes(written(compact(result)))
    except OSError as error:
        raise CommandError(f"--result-file: {path} cannot be written: {error.strerror or error}") from error
