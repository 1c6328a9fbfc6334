"""Functions for trips.sql: one that waits, one that gives rows, and an aggregate."""

import asyncio
from collections.abc import Iterator

from headrace import udaf, udf, udtf

CARRIERS = {"a": "Aurora Cars", "b": "Boreal Taxi"}


@udf(ordered=True, timeout="2s", max_in_flight=100, on_error="null")
async def carrier(car: str) -> str | None:
    await asyncio.sleep(0.01)  # stands for a request to another system
    return CARRIERS.get(car)


@udtf
def cells(start: str, end: str) -> Iterator[str]:
    yield start
    if end != start:
        yield end


@udaf
class Busiest:
    """The car that went furthest. Cars and their metres are kept, not the trips."""

    cars: list[str] = []  # noqa: RUF012 - each group has its own
    metres: list[float] = []  # noqa: RUF012

    def update(self, car: str, metres: float) -> None:
        totals = dict(zip(self.cars, self.metres, strict=True))
        totals[car] = totals.get(car, 0.0) + metres
        self.cars, self.metres = list(totals), list(totals.values())

    def merge(self, other: "Busiest") -> None:
        for car, metres in zip(other.cars, other.metres, strict=True):
            self.update(car, metres)

    def finish(self) -> str | None:
        return max(zip(self.metres, self.cars, strict=True))[1] if self.cars else None
