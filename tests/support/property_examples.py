"""How many examples a property gets: the profile that `tests/conftest.py` loads decides."""

from hypothesis import settings


def examples(of_a_hundred: int) -> int:
    """Scale a property's number of examples with the profile: as many as given if the profile has a hundred."""
    return max(5, of_a_hundred * settings().max_examples // 100)
