"""The page of the documentation."""


def write_page() -> None:
    """Write it."""
