from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, NamedTuple, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from headrace import udf


class Geo(NamedTuple):
    lat: float
    lon: float


@dataclass
class Address:
    city: str
    geo: Geo


class Described(TypedDict):
    place: str
    far: bool | None


@udf
def described(address: Address) -> Described:
    return {"place": f"{address.city} {address.geo.lat:.0f}", "far": abs(address.geo.lon) > 50}


@udf
def moved(address: Address | None) -> Address:
    if address is None:
        return Address("nowhere", Geo(0.0, 0.0))
    return Address(address.city.upper(), address.geo._replace(lat=address.geo.lat + 1))


@udf
def twice(amounts: pa.DoubleArray) -> pa.DoubleArray:
    return pc.multiply(amounts, 2)


@udf
def shorten(at: datetime) -> date:
    return at.date()


@udf
def next_hour(at: datetime) -> datetime:
    return at + timedelta(hours=1)


@udf
def tenth(amount: Decimal) -> Annotated[Decimal, pa.decimal128(10, 2)]:
    return (amount / 10).quantize(Decimal("0.01"))


@udf
def encoded(text: str) -> bytes:
    return text.encode()[::-1]


@udf
def tags_upper(tags: list[str | None], count: int) -> list[str]:
    return [tag.upper() for tag in tags if tag is not None][:count]
