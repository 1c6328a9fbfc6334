from headrace import udf


@udf
def spread(values: list[int]) -> int | None:
    return max(values) - min(values) if values else None


@udf
def middle(values: list[int]) -> int:
    return sorted(values)[len(values) // 2]
