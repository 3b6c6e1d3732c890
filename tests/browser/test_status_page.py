"""Protects what an SRE meets in the status page, in a real Chromium: sign-in, a thousand services painted within a second,
search, filter, sort and pages by keyboard, updates within two seconds, the evidence on a service's page, nothing from
outside, no violation of the content policy, no accessibility finding in the light or the dark."""

from __future__ import annotations

import json
import time
from http.client import HTTPConnection
from statistics import median
from typing import Any
from urllib.parse import urlsplit

import pytest
from browser import fleet
from browser.conftest import SERVICES, SHOTS, TOKEN, Operator
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from pagefleet_operator.web.status_page import MAX_VIEWERS

PAINTED_SECONDS, UPDATED_SECONDS = 1.0, 2.0
ROWS = "table.fleet tbody tr"
REFUSALS = {"403", "503"}  # that tests provoke


def until(browser: WebDriver, condition: str, seconds: float = 10.0) -> None:
    """Wait for a condition in JavaScript."""
    script = f"return Boolean({condition})"
    WebDriverWait(browser, seconds, poll_frequency=0.02).until(lambda _: browser.execute_script(script), condition)


def opened(browser: WebDriver, where: str = "#/") -> None:
    browser.execute_script("location.hash = arguments[0]", where)
    until(browser, "document.querySelector('.fleet tbody a')" if where == "#/" else "document.querySelector('.facts')")


def all_of(browser: WebDriver, selector: str) -> list[WebElement]:
    return browser.find_elements(By.CSS_SELECTOR, selector)


def text(browser: WebDriver, selector: str) -> str:
    return str(browser.execute_script("return document.querySelector(arguments[0]).textContent", selector))


def test_only_the_token_lets_in(chromium: WebDriver, operator: Operator) -> None:
    chromium.get(operator.url)
    chromium.delete_all_cookies()
    chromium.get(operator.url)
    assert chromium.current_url.endswith("/ui/login")
    shot(chromium, "sign-in")
    chromium.find_element(By.ID, "token").send_keys("wrong" + Keys.ENTER)
    until(chromium, "document.querySelector('[role=alert]')")
    chromium.find_element(By.ID, "token").send_keys(TOKEN + Keys.ENTER)
    until(chromium, "document.querySelector('.fleet tbody a')")
    assert chromium.get_cookies()[0]["httpOnly"]


def test_a_thousand_services_are_painted_within_a_second(browser: WebDriver, operator: Operator) -> None:
    opened(browser)
    times = []
    for _ in range(3):
        browser.get("about:blank")
        browser.get(operator.url)
        until(browser, "performance.getEntriesByName('updated').length")
        until(browser, "performance.getEntriesByName('first-contentful-paint').length")
        painted = browser.execute_script("return performance.getEntriesByName('first-contentful-paint')[0].startTime")
        filled = browser.execute_script("return performance.getEntriesByName('updated')[0].startTime")
        times.append((painted / 1000, filled / 1000))
    figure("first paint and all rows, seconds", times)
    assert f"{SERVICES:,} services" in text(browser, ".headline p")
    assert median(painted for painted, _ in times) < PAINTED_SECONDS
    assert median(filled for _, filled in times) < PAINTED_SECONDS
    shot(browser, "fleet-light")


def test_search_filter_sort_and_pages_by_keyboard(browser: WebDriver) -> None:
    opened(browser)
    search = browser.find_element(By.ID, "search")
    search.send_keys("service-0005")
    until(browser, f"document.querySelectorAll('{ROWS}').length === 1")
    search.clear()
    search.send_keys("team-07 no-such")
    until(browser, "document.querySelector('.empty')")
    search.clear()
    search.send_keys(" ")
    until(browser, f"document.querySelectorAll('{ROWS}').length === 50")
    groups = {button.text.rsplit(" ", 1)[0]: button for button in all_of(browser, ".groups button")}
    groups["Rolling out"].send_keys(Keys.ENTER)
    until(browser, f"document.querySelectorAll('{ROWS}').length < 50")
    assert {badge.text.split(" ", 1)[1] for badge in all_of(browser, ".badge")} == {"Rolling out"}
    groups["All"].send_keys(Keys.SPACE)
    heads = all_of(browser, "thead th")
    heads[0].find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert heads[0].get_attribute("aria-sort") == "ascending"
    assert "chat" in text(browser, ROWS)
    heads[0].find_element(By.TAG_NAME, "button").send_keys(Keys.ENTER)
    assert heads[0].get_attribute("aria-sort") == "descending"
    assert "service-0999" in text(browser, ROWS) or "service-0979" in text(browser, ROWS)
    before = text(browser, ROWS)
    all_of(browser, ".pages button")[1].send_keys(Keys.ENTER)
    assert "Page 2 of 20" in text(browser, ".pages")
    assert text(browser, ROWS) != before


def test_the_fleet_follows_within_two_seconds(browser: WebDriver, operator: Operator) -> None:
    opened(browser)
    browser.find_element(By.ID, "search").send_keys("newcomer")
    until(browser, "document.querySelector('.empty')")
    lags = []
    for ready, shown in ((0, "0 / 1"), (1, "1 / 1"), (3, "3 / 3"), (0, "0 / 1"), (2, "2 / 2")):
        began = time.monotonic()
        operator.publish("team-x", "newcomer", fleet.idle(time.time(), ready=ready))
        until(browser, f"document.querySelector('{ROWS}').textContent.includes('{shown}')", 5)
        lags.append(time.monotonic() - began)
    figure("update lag, seconds", lags)
    assert max(lags) < UPDATED_SECONDS
    operator.gone("team-x", "newcomer")
    until(browser, "document.querySelector('.empty')", UPDATED_SECONDS)


def test_a_page_that_waits_for_its_turn_keeps_what_was_searched(browser: WebDriver, operator: Operator) -> None:
    """So many pages are open that this one is refused until they are closed."""
    browser.get("about:blank")
    address, others = urlsplit(operator.url), []
    for _ in range(MAX_VIEWERS):
        other = HTTPConnection(address.netloc, timeout=10)
        other.request("GET", f"{address.path}events?service=a/none", headers={"Authorization": f"Bearer {TOKEN}"})
        other.getresponse()
        others.append(other)
    browser.get(operator.url)
    until(browser, "document.querySelector('.live.bad')")
    browser.find_element(By.ID, "search").send_keys("service-0005")
    asked = "performance.getEntriesByType('resource').filter((one) => one.name.endsWith('/api/services')).length"
    until(browser, f"{asked} > 1")  # it has tried again meanwhile
    for other in others:
        other.close()
    until(browser, f"document.querySelectorAll('{ROWS} a').length === 1", 30)
    assert browser.find_element(By.ID, "search").get_attribute("value") == "service-0005"


def test_a_service_shows_its_evidence_and_follows(browser: WebDriver, operator: Operator) -> None:
    opened(browser)
    opened(browser, "#/team-00/chat")
    assert "gets 25 % of requests" in text(browser, ".lead")
    assert "expected in about 3 min" in text(browser, ".lead")
    assert len(all_of(browser, ".charts svg")) == 3
    assert len(all_of(browser, "polygon.band.stable")) == len(all_of(browser, "polygon.band.canary")) == 3
    assert [part.text for part in all_of(browser, ".split .part")] == ["75 %", "25 %"]
    widths = [part.size["width"] for part in all_of(browser, ".split .part")]
    assert 2.5 < widths[0] / widths[1] < 3.5
    assert [one.text for one in all_of(browser, ".card:has(#traffic) td span.small")] == [
        "prefill 2 / 2",
        "prefill 1 / 2",
    ]
    assert len(all_of(browser, ".tile")) == 11 + 3
    assert [len(all_of(browser, f"#pods ~ ul:nth-of-type({place}) .tile")) for place in (1, 2, 3, 4)] == [8, 3, 2, 1]
    assert "prefill pods of stable" in text(browser, ".card:has(#pods)")
    assert "Unschedulable" in text(browser, "#pods ~ .tiles") + text(browser, ".card:has(#pods)")
    assert "The canary's pods are ready; it gets 25 % of requests." in text(browser, ".log")
    full(browser, "service-light")
    operator.publish("team-00", "chat", fleet.idle(time.time()))
    until(browser, "document.querySelector('.lead').textContent.includes('serves all traffic')", UPDATED_SECONDS)
    operator.publish("team-00", "chat", fleet.rollout(time.time()), seed=3)


def test_pods_stand_under_their_revisions_also_in_an_older_browser(browser: WebDriver) -> None:
    """Firefox has Map.groupBy from 119 on, Safari from 17.4 on. The long-term release of Firefox before has none."""
    opened(browser)
    browser.execute_script("delete Map.groupBy")
    opened(browser, "#/team-00/chat")
    headings = [" ".join(one.text.split()[:-1]) for one in all_of(browser, ".card:has(#pods) h3")]
    assert headings == ["stable", "canary", "prefill pods of stable", "prefill pods of canary"]


def test_a_service_without_a_guard_shows_it(browser: WebDriver, operator: Operator) -> None:
    opened(browser, "#/team-05/service-0025")
    until(browser, "!document.querySelector('.trouble')")
    operator.publish("team-05", "service-0025", fleet.idle(time.time(), guarded=False), seed=25)
    until(browser, "document.querySelector('.trouble')")
    assert text(browser, ".trouble") == "NoGuard spec.rollout.guard judges nothing"
    operator.publish("team-05", "service-0025", fleet.idle(time.time()), seed=25)
    until(browser, "!document.querySelector('.trouble')")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("where", ["#/", "#/team-00/chat", "#/team-07/service-0007"])
def test_there_is_no_accessibility_finding(browser: WebDriver, axe: str, scheme: str, where: str) -> None:
    with_scheme(browser, scheme)
    opened(browser, where)
    browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})  # a page's own policy would refuse a script
    report: dict[str, Any] = browser.execute_async_script("axe.run().then(arguments[0])")
    if scheme == "dark":
        full(browser, "fleet-dark" if where == "#/" else f"{where.rsplit('/', 1)[1]}-dark")
    assert report["passes"]
    problems = [
        (entry["id"], entry["impact"], [n["html"] for n in entry["nodes"]][:3]) for entry in report["violations"]
    ]
    assert problems == []


def test_focus_goes_to_the_new_page_s_heading(browser: WebDriver) -> None:
    opened(browser)
    link = all_of(browser, ".fleet tbody a")[0]
    link.send_keys(Keys.ENTER)
    until(browser, "document.activeElement.tagName === 'H1' && document.querySelector('.facts')")


def test_a_narrow_screen_does_not_scroll_sideways(browser: WebDriver) -> None:
    opened(browser, "#/team-00/chat")
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 1, "mobile": True}
    )
    try:
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        shot(browser, "service-narrow")
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_nothing_comes_from_outside_and_no_policy_is_broken(browser: WebDriver, operator: Operator) -> None:
    """Over everything that the tests above did."""
    opened(browser)
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
    pages = [url for url in sent if urlsplit(url).scheme in ("http", "https", "ws", "wss")]
    assert pages
    assert {urlsplit(url).netloc for url in pages} == {urlsplit(operator.url).netloc}
    wrong = [
        entry
        for entry in browser.get_log("browser")
        if entry["level"] == "SEVERE" and not REFUSALS & set(entry["message"].split())
    ]
    assert wrong == []


def with_scheme(browser: WebDriver, scheme: str) -> None:
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def figure(name: str, values: object) -> None:
    """Write a figure for people beside the screenshots."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    with (SHOTS / "figures.jsonl").open("a") as file:
        file.write(json.dumps({"figure": name, "services": SERVICES, "values": values}) + "\n")


def shot(browser: WebDriver, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    browser.save_screenshot(str(SHOTS / f"{name}.png"))


def full(browser: WebDriver, name: str) -> None:
    """Take a screenshot of the whole page, not only of the part that fits the window."""
    height = browser.execute_script("return document.documentElement.scrollHeight")
    browser.set_window_size(1280, height + 200)
    shot(browser, name)
    browser.set_window_size(1280, 1000)
