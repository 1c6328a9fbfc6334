from collections.abc import Iterator
from typing import NamedTuple

from headrace import udtf


class Tag(NamedTuple):
    tag: str | None
    place: int


@udtf
def tags_of(tags: list[str | None], _mark: str) -> Iterator[Tag]:
    for place, tag in enumerate(tags):
        yield Tag(tag, place)


@udtf
def letters(name: str) -> Iterator[str]:
    yield from name


@udtf
def numbers(count: int) -> Iterator[int]:
    return iter(range(count))


@udtf
def pairs(number: int, times: int | None) -> list[tuple[int, str]]:
    return [(number * time, f"{number}x") for time in range(times or 1)]
