import asyncio
from collections import Counter

from headrace import async_udf, udf

CITIES = {"ada": "oslo", "bob": "lima", "oslo": "norway", "lima": "peru"}
asked: Counter[str] = Counter()


@udf(ordered=True, timeout="10s", allowed_in_flight=3)
async def look_up(name: str) -> str | None:
    asked[name] += 1
    if asked[name] % 3 == 1:
        raise ConnectionError("not yet")
    await asyncio.sleep(0.001 * len(name))
    return CITIES.get(name)


@async_udf(timeout="10s", max_in_flight=2)
async def price(quantity: int | None, note: str) -> float:
    await asyncio.sleep(0.001 * (quantity or 0))
    return (quantity or 0) + len(note) / 100


@udf(timeout="10s", retries=1, on_error="null")
async def never(number: int) -> int:
    if number % 2:
        raise ValueError("never for odd numbers")
    return number
