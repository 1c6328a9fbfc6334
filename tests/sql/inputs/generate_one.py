"""Writes the inputs of the SQL cases about windows, joins, aggregates and OVER.

They are the same at every run: `python tests/sql/inputs/generate_one.py`. Rows come nearly in the order of
event time: a row may be less than a second behind one before it. `readings` and `customers` are in order, and
the rows of `bridges` are up to 20 s behind.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
START = datetime(2024, 5, 1, 8, 0, 0)  # noqa: DTZ001 - event times have no zone

Row = dict[str, Any]


def at(milliseconds: int) -> str:
    """An instant after the start, as a text."""
    time = START + timedelta(milliseconds=milliseconds)
    return time.isoformat(timespec="milliseconds" if time.microsecond else "seconds")


def bursts(pick: random.Random, count: int, *, near: int, far: int, chance: float) -> Iterator[int]:
    """Instants in milliseconds: mostly `near` the one before, by `chance` up to `far`; some are ties."""
    time = 0
    for _ in range(count):
        yield time
        if pick.random() < 0.06:
            continue
        time += pick.randrange(1, far) if pick.random() < chance else pick.randrange(1, near)


def rides() -> Iterable[tuple[int, Row]]:
    """Taxi rides: a pickup and, for most, a drop-off later on; a few drop-offs have lost their pickup."""
    pick = random.Random(1)
    zones = ["airport", "harbour", "centre", "north", "stadium"]
    for ride, start in enumerate(bursts(pick, 190, near=9_000, far=60_000, chance=0.1), start=1):
        driver = pick.choice([1, 1, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9])
        passengers = pick.choice([1, 1, 1, 2, 2, 3, 4, None])
        common = {"ride_id": ride, "driver_id": driver}
        if ride % 37:
            zone = pick.choice(zones)
            yield start, {"event_time": at(start), "event": "pickup", **common, "zone": zone} | {
                "passengers": passengers, "fare": None, "paid_with": None
            }  # fmt: skip
        if ride % 11 == 0:
            continue
        end = start + pick.randrange(30_000, 400_000)
        last = None if ride % 23 == 0 else pick.choice(zones)
        yield (
            end,
            {"event_time": at(end), "event": "dropoff", **common, "zone": last}
            | {
                "passengers": passengers,
                "fare": pick.randrange(12, 400) / 4,
                "paid_with": pick.choice(["card", "card", "cash", None]),
            },
        )


def customers() -> Iterable[tuple[int, Row]]:
    """Who orders; two have no tier, and one name occurs twice."""
    pick = random.Random(2)
    for number in range(1, 41):
        time = number * 3_000
        yield (
            time,
            {
                "customer_id": number,
                "name": "Alex" if number in (7, 23) else f"customer {number}",
                "tier": None if number in (5, 30) else pick.choice(["basic", "basic", "gold", "silver"]),
                "region": pick.choice(["north", "south", "west"]),
                "joined_at": at(time),
            },
        )


def orders() -> Iterable[tuple[int, Row]]:
    """Orders in bursts; some without a customer, some of customers that nobody knows."""
    pick = random.Random(3)
    cities = [("Oslo", "NO"), ("Bergen", "NO"), ("Lund", "SE"), (None, "SE"), ("Turku", "FI")]
    for number, time in enumerate(bursts(pick, 260, near=6_000, far=120_000, chance=0.08), start=1):
        city, country = pick.choice(cities)
        yield (
            time,
            {
                "order_id": number,
                "customer_id": None if number % 29 == 0 else pick.choice([*range(1, 39), 3, 3, 3, 99]),
                "placed_at": at(time),
                "status": pick.choice(["new", "new", "shipped", "cancelled"]),
                "amount": pick.randrange(100, 25_000),
                "quantity": pick.choice([1, 1, 2, 3, 5, None]),
                "coupon": pick.choice([None, None, None, "SPRING", "VIP"]),
                "ship_to": None if number % 41 == 0 else {"city": city, "country": country},
            },
        )


def payments() -> Iterable[tuple[int, Row]]:
    """Payments of orders: none, one or two for each; some of no order, some of an unknown one."""
    pick = random.Random(4)
    number = 0
    for time, order in orders():
        for _ in range(pick.choice([0, 0, 1, 1, 1, 1, 2])):
            number += 1
            later = time + pick.randrange(0, 90_000)
            paid = 9_000 + number if number % 37 == 0 else order["order_id"]
            paid = None if number % 31 == 0 else paid
            yield (
                later,
                {
                    "payment_id": number,
                    "order_id": paid,
                    "paid_at": at(later),
                    "method": pick.choice(["card", "card", "invoice", None]),
                    "amount": order["amount"] if pick.random() < 0.8 else order["amount"] // 2,
                },
            )


def views() -> Iterable[tuple[int, Row]]:
    """Page views: a few busy users, many quiet ones, visitors without a name."""
    pick = random.Random(5)
    devices = [
        {"os": "linux", "mobile": False},
        {"os": "android", "mobile": True},
        {"os": None, "mobile": True},
    ]
    paths = ["/", "/cart", "/item/1", "/item/2", "/item/3", "/help"]
    for number, time in enumerate(bursts(pick, 420, near=2_500, far=50_000, chance=0.05), start=1):
        user = pick.choice(["ada", "ada", "ada", "bob", "bob", "cyd", None, f"guest{pick.randrange(30)}"])
        yield (
            time,
            {
                "view_id": number,
                "viewed_at": at(time),
                "user_name": user,
                "path": pick.choice(paths),
                "referrer": pick.choice([None, None, "search", "mail"]),
                "device": None if pick.random() < 0.05 else pick.choice(devices),
                "spent_ms": pick.choice([None, pick.randrange(10, 5_000)]),
            },
        )


def readings() -> Iterable[tuple[int, Row]]:
    """Readings of sensors: in order, with ties and repeated rows; `s6` gives nothing but nulls."""
    pick = random.Random(6)
    sensors = ["s1", "s1", "s1", "s2", "s2", "s3", "s4", "s6"]
    for number, time in enumerate(bursts(pick, 330, near=3_000, far=30_000, chance=0.06), start=1):
        sensor = "s5" if number in (40, 41, 300) else pick.choice(sensors)
        nothing = sensor == "s6" or pick.random() < 0.1
        x = None if nothing else pick.randrange(-80, 400) / 4
        row = {
            "reading_id": number,
            "read_at": at(time),
            "sensor": sensor,
            "x": x,
            "y": None if x is None or pick.random() < 0.1 else 2 * x + pick.randrange(-20, 20) / 4,
            "flags": None if nothing else pick.randrange(0, 64),
            "ok": None if nothing else pick.random() < 0.8,
            "note": None if nothing else pick.choice(["low", "mid", "high", ""]),
        }
        yield time, row
        if number % 50 == 0:
            yield time, row


def impressions() -> Iterable[tuple[int, Row]]:
    """Advertisements that were shown."""
    pick = random.Random(7)
    for number, time in enumerate(bursts(pick, 300, near=2_000, far=25_000, chance=0.05), start=1):
        yield (
            time,
            {
                "impression_id": number,
                "shown_at": at(time),
                "ad": pick.choice(["a", "a", "b", "c", "d", None]),
                "person": pick.randrange(1, 16),
                "cost": pick.randrange(1, 50),
            },
        )


def clicks() -> Iterable[tuple[int, Row]]:
    """Clicks on advertisements, some on ones that were not shown."""
    pick = random.Random(8)
    for time, shown in impressions():
        if pick.random() < 0.3:
            later = time + pick.randrange(0, 8_000)
            ad = "e" if pick.random() < 0.1 else shown["ad"]
            yield later, {"clicked_at": at(later), "ad": ad, "person": shown["person"]}


def trips() -> Iterable[tuple[int, Row]]:
    """Visits at the edges of a session with a gap of 10 s: exactly the gap, a bit less, and bridges."""
    seconds: dict[str, list[float]] = {
        "exactly": [0, 10, 20, 30],
        "a bit less": [1, 10.999, 20.998, 31],
        "alone": [5, 60, 200],
        "bridged": [40, 49.6, 48.9, 58.2],
        "ties": [70, 70, 70, 80, 80],
        "one": [90],
        "chain": [*range(100, 160, 9), 170, 179],
    }
    place = 0
    for who, instants in seconds.items():
        for second in instants:
            place += 1
            time = round(second * 1000)
            yield time, {"visit_id": place, "visited_at": at(time), "who": who, "points": place * 3 % 11}


def bridges() -> Iterable[tuple[int, Row]]:
    """Visits whose sessions meet only when a row between them comes, after both."""
    pick = random.Random(9)
    place = 0
    shapes: list[tuple[int, ...]] = [(0, 16, 8), (0, 18, 9, 27), (0, 14), (0, 10), (0, 20, 10), (0, 19, 9)]
    for start in range(0, 1_800, 60):
        for who in ("p", "q", None):
            first = start + pick.randrange(0, 5)
            for offset in pick.choice(shapes):
                place += 1
                time = 1000 * (first + offset)
                yield (
                    1000 * start + place,
                    {"visit_id": place, "visited_at": at(time), "who": who, "points": place % 7},
                )


IN_ORDER = ("readings", "customers", "bridges")
INPUTS = (rides, customers, orders, payments, views, readings, impressions, clicks, trips, bridges)


def write(name: str, rows: Iterable[tuple[int, Row]]) -> None:
    """Write rows as lines, by event time and less than a second of disorder."""
    pick = random.Random(name)
    slack = 0 if name in IN_ORDER else 950
    placed = sorted((time + pick.randrange(slack + 1), place, row) for place, (time, row) in enumerate(rows))
    lines = [json.dumps(row) + "\n" for _, _, row in placed]
    (HERE / f"{name}.json").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    for make in INPUTS:
        write(make.__name__, make())
