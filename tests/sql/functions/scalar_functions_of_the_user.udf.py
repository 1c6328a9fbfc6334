from headrace import udf


@udf
def greet(name: str | None) -> str:
    return f"hello {name or 'stranger'}"


@udf
def longest(one: str, other: str) -> str:
    return max(one, other, key=len)


@udf
def cents(amount: float) -> int:
    return round(amount * 100)
