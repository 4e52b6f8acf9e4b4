"""Which Ray grid needs. Imports nothing of Ray, so that an old one can be told politely."""

from typing import Final

from distributed_grid.errors import RayUnsuitable

OLDEST_RAY: Final = (2, 55)


def check_ray_version(version: str) -> None:
    """Raise `RayUnsuitable` for a Ray that cannot resize raylets."""
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if numbers < OLDEST_RAY:
        raise RayUnsuitable(
            f"Ray {version} is too old: grid needs {'.'.join(map(str, OLDEST_RAY))} or newer",
            because=["older versions cannot change a running node's resources"],
            try_next="pip install --upgrade 'ray[default]' on every node, then restart the cluster.",
        )
