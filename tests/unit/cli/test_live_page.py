"""`headrace run --ui`: the live page of a run, and what it asks."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

SQL = """
CREATE TABLE numbers (counter BIGINT) WITH (connector = 'impulse', event_rate = 200);
SELECT counter, counter % 10 AS digit FROM numbers WHERE counter % 2 = 0
"""
PATIENCE = 120.0


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of a run without Spark."""
    errors = tmp_path_factory.mktemp("page") / "stderr.txt"
    with errors.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "headrace", "run", "--ui", "--engine=local", "--no-progress", "-e", SQL],
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "NO_COLOR": "1"},
        )
    try:
        ends = time.monotonic() + PATIENCE
        while (found := re.search(r"live page: (\S+)", errors.read_text())) is None:
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < ends, errors.read_text()
            time.sleep(0.05)
        yield found[1]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0


def get(address: str) -> tuple[str, Any]:
    with urlopen(address, timeout=30) as answer:
        assert "connect-src 'self'" in answer.headers["content-security-policy"]
        return answer.headers["content-type"], answer.read().decode()


def ask(address: str) -> Any:
    ends = time.monotonic() + PATIENCE
    while not (told := json.loads(get(address)[1])):
        assert time.monotonic() < ends
        time.sleep(0.1)
    return told


def test_the_page_is_one_file_that_names_no_other_host(page: str) -> None:
    kind, text = get(page)
    assert kind == "text/html; charset=utf-8"
    assert "<h1 " in text
    assert "://" not in text


def test_the_page_is_told_how_the_run_and_its_operators_are(page: str) -> None:
    ends = time.monotonic() + PATIENCE
    told = ask(f"{page}status")
    while told["status"] is None or not told["status"]["progress"]:
        assert time.monotonic() < ends
        told = ask(f"{page}status")
    assert told["status"]["state"] == "running"
    assert told["metrics"]["rows_in"] > 0
    names = set(told["metrics"]["operators"])
    assert {name for edge in told["edges"] for name in edge} == names


def test_rows_of_an_operator_are_shown_and_filtered(page: str) -> None:
    ask(f"{page}status")
    edges: list[list[str]] = []
    while not edges:
        edges = ask(f"{page}status").get("edges", [])
    source = edges[0][0]
    all_rows = json.loads(ask(f"{page}rows?{urlencode({'operator': source})}")[0]["batch"])
    assert {row["counter"] % 2 for row in all_rows} <= {0, 1}
    some = ask(f"{page}rows?{urlencode({'operator': source, 'where': 'counter % 5 = 0'})}")
    for epoch in some:
        assert all(row["counter"] % 5 == 0 for row in json.loads(epoch["batch"]))
    later = ask(f"{page}rows?{urlencode({'operator': source, 'after': some[-1]['number']})}")
    assert all(epoch["number"] > some[-1]["number"] for epoch in later)


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("rows?operator=nobody", "no operator `nobody`"),
        ("rows?operator=x&after=soon", "invalid literal"),
    ],
)
def test_what_cannot_be_asked_is_told(page: str, what: str, message: str) -> None:
    ask(f"{page}status")
    with pytest.raises(HTTPError) as error:
        get(page + what)
    with error.value:
        assert error.value.code == 400
        assert message in json.loads(error.value.read())["error"]


def test_without_the_secret_of_the_address_there_is_nothing(page: str) -> None:
    host = page.rsplit("/", 2)[0]
    for path in ("/", "/status", "/wrong/status", f"/{Path(page).name[:-1]}/status"):
        with pytest.raises(HTTPError) as error:
            get(host + path)
        with error.value:
            assert error.value.code == 404
