from dataclasses import dataclass, field

from headrace import udaf


@udaf
class Weighted:
    total: float = 0.0
    weight: int = 0

    def update(self, value: float, weight: int) -> None:
        self.total += value * weight
        self.weight += weight

    def retract(self, value: float, weight: int) -> None:
        self.total -= value * weight
        self.weight -= weight

    def merge(self, other: "Weighted") -> None:
        self.total += other.total
        self.weight += other.weight

    def finish(self) -> float | None:
        return round(self.total / self.weight, 3) if self.weight else None


@udaf
class Longest:
    """It can be merged, and rows cannot be taken back from it."""

    text: str | None = None

    def update(self, text: str) -> None:
        self.text = max(self.text or "", text, key=lambda one: (len(one), one))

    def merge(self, other: "Longest") -> None:
        if other.text is not None:
            self.update(other.text)

    def finish(self) -> str | None:
        return self.text


@udaf
class First_Note:  # noqa: N801 - users write such names
    """It can only be given rows."""

    text: str | None = None

    def update(self, text: str | None) -> None:
        self.text = min(text or "none", self.text or text or "none")

    def finish(self) -> str | None:
        return self.text


@udaf(name="distinct_values")
@dataclass
class Distinct:
    """What is taken back must have been given before."""

    values: list[int] = field(default_factory=list)

    def update(self, value: int) -> None:
        self.values.append(value)

    def retract(self, value: int) -> None:
        self.values.remove(value)

    def merge(self, other: "Distinct") -> None:
        self.values += other.values

    def finish(self) -> list[int]:
        return sorted(set(self.values))
