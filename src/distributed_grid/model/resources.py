"""Amounts of resources in exact integer units.

Ray counts in ten-thousandths; so do we, for everything but memory, which is in bytes. Floats appear only at
the edges (requests, JSON, Ray's own maps), so sums and differences are exact and "back at base" means equal.
"""

import math
import re
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final, Self

from distributed_grid.errors import InvalidAmount, UnknownResource, did_you_mean

CPU: Final = "cpu"
GPU: Final = "gpu"
MEMORY: Final = "memory"
BUILT_IN: Final = (CPU, GPU, MEMORY)

GB: Final = 2**30
"""A GB of memory is 2**30 bytes, as Ray and the kernel count it."""

_STEPS: Final = 10_000
_RAY_NAMES: Final = {CPU: "CPU", GPU: "GPU", MEMORY: "memory"}
_KINDS: Final = {ray: kind for kind, ray in _RAY_NAMES.items()}
_LARGEST: Final = {MEMORY: 2**60}
_ABSURD: Final = Decimal(10) ** 15
_LARGEST_COUNT: Final = 10_000_000 * _STEPS

# Resources that Ray and grid create on a node for their own use: for placement groups, and the object store.
_INTERNAL_PREFIXES: Final = ("grid:",)
_INTERNAL: Final = ("object_store_memory",)
# Resources with which Ray describes a node: its address, that it is the head, its GPU type, that it leads a
# slice of TPUs. A task requests a little of one to run there; it is not an amount of anything.
_DESCRIBES: Final = re.compile(r"(node:|accelerator_type:).*|TPU-.+-head", re.DOTALL)


def scale(kind: str) -> int:
    """How many units make one core, device or GB."""
    return GB if kind == MEMORY else _STEPS


def kind_of(name: str) -> str:
    """The resource kind that a person means; custom resources keep their spelling."""
    kind = name.strip()
    if kind.lower() in BUILT_IN:
        return kind.lower()
    if kind in _KINDS:
        return _KINDS[kind]
    if describes_a_node(kind):
        raise UnknownResource(
            f"{kind} describes a node: it cannot be lent, reserved or counted",
            because=["Ray gives it to a node that has this hardware or address; on another node it would be false"],
            try_next="Ask for cpu, gpu or memory, and choose the lender with --source.",
        )
    if not kind or is_internal(kind):
        raise UnknownResource(
            f"Unknown resource type: {name!r}",
            try_next="Use cpu, gpu, memory, or the name of a custom Ray resource.",
        )
    return kind


def did_you_mean_kind(name: str, custom: Iterable[str] = ()) -> str:
    """A question to append to a message; empty if nothing is close."""
    short = next((kind for kind in BUILT_IN if len(name) > 1 and kind.startswith(name.lower().rstrip("s"))), None)
    return f"; did you mean {short!r}?" if short else did_you_mean(name.lower(), (*BUILT_IN, *custom))


@lru_cache(maxsize=4096)  # asked several times a second about the same few names
def is_internal(ray_name: str) -> bool:
    """True for resources that Ray or grid create on a node by themselves: users neither have nor lend them."""
    return (
        ray_name in _INTERNAL
        or ray_name.startswith(_INTERNAL_PREFIXES)
        or "_group_" in ray_name
        or describes_a_node(ray_name)
    )


def describes_a_node(ray_name: str) -> bool:
    """True for resources with which Ray describes a node: never lent, shown or suggested."""
    return _DESCRIBES.fullmatch(ray_name) is not None


def ray_name(kind: str) -> str:
    return _RAY_NAMES.get(kind, kind)


def units_of(kind: str, amount: object) -> int:
    """An amount as people write it (cores, devices, GB), in units. Raises `InvalidAmount`, which says what is wrong."""
    try:
        value = Decimal(str(amount).strip())
    except InvalidOperation:
        raise InvalidAmount(f"{amount!r} is not a number", try_next="Give an amount such as 2 or 0.5.") from None
    if not value.is_finite():
        raise InvalidAmount(f"The amount must be a finite number, not {amount}")
    if value <= 0:
        raise InvalidAmount(f"The amount must be above zero, not {amount}")
    if value > _ABSURD:
        raise InvalidAmount(f"{amount} {unit_label(kind)} is more than any cluster has")
    units = int((value * scale(kind)).to_integral_value())
    if units <= 0:
        raise InvalidAmount(f"{amount} is below the smallest amount that Ray can count")
    if units > _LARGEST.get(kind, _LARGEST_COUNT):
        raise InvalidAmount(f"{amount} {unit_label(kind)} is more than any cluster has")
    return units


def units_requested(kind: str, amount: object) -> int:
    """The same for an amount that one program is to hold: of GPUs, a part of one or whole ones."""
    units = units_of(kind, amount)
    if not is_given_out(kind, units):
        fewer = units // scale(kind)
        raise InvalidAmount(
            f"{describe(kind, units)}: Ray gives out a fraction of one GPU, or whole GPUs",
            try_next=f"Ask for {fewer} or {fewer + 1}.",
        )
    return units


def is_given_out(kind: str, units: int) -> bool:
    """Whether Ray can give this much to one task, actor or bundle: of GPUs, a part of one or whole ones."""
    return kind != GPU or units <= scale(GPU) or whole(GPU, units)


def unit_label(kind: str) -> str:
    return {CPU: "CPUs", GPU: "GPUs", MEMORY: "GB"}.get(kind, kind)


def amount_of(kind: str, units: int) -> float | int:
    """Units as people read them; whole numbers stay whole."""
    value = units / scale(kind)
    return int(value) if value == int(value) else round(value, 4)


def in_range(kind: str, least: int, most: int) -> str:
    """ "2 to 16 CPUs"; "up to 16 CPUs", where the least is a mere mark of its place."""
    return f"up to {describe(kind, most)}" if least == 1 else f"{amount_of(kind, least)} to {describe(kind, most)}"


def cut_off(kind: str, units: int) -> int:
    """Units truncated to the four digits that people read, so that an offered amount is available."""
    return units * 10_000 // scale(kind) * scale(kind) // 10_000


def describe(kind: str, units: int) -> str:
    """ "4 CPUs", "1 GPU", "2.5 GB": for messages."""
    amount = amount_of(kind, units)
    label = unit_label(kind)
    if amount == 1 and kind in (CPU, GPU):
        label = label[:-1]
    suffix = " of memory" if kind == MEMORY else ""
    return f"{amount} {label}{suffix}"


class ResourceVector(Mapping[str, int]):
    """Amounts per kind, in units. Immutable; kinds at zero are left out, so equal means equal."""

    __slots__ = ("_units",)

    def __init__(self, units: Mapping[str, int] | None = None) -> None:
        self._units: dict[str, int] = {k: v for k, v in (units or {}).items() if v}

    @classmethod
    def of(cls, **amounts: float) -> Self:
        """`ResourceVector.of(cpu=4, memory=8)`: amounts as people write them."""
        return cls({kind_of(k): round(v * scale(kind_of(k))) for k, v in amounts.items()})

    @classmethod
    def from_ray(cls, resources: Mapping[str, float]) -> Self:
        """The user's resources in a Ray resource map; internal entries of Ray and grid are left out."""
        found: dict[str, int] = {}
        for name, value in resources.items():
            if is_internal(name) or (name in BUILT_IN and name not in _KINDS):
                continue  # a custom resource with the name of a built-in kind would hide it
            kind = _KINDS.get(name, name)
            found[kind] = round(value) if kind == MEMORY else round(value * _STEPS)
        return cls(found)

    def to_ray(self) -> dict[str, float]:
        return {ray_name(k): float(v) if k == MEMORY else v / _STEPS for k, v in self._units.items()}

    def to_amounts(self) -> dict[str, float | int]:
        """For JSON: cpu, gpu and memory are always present, custom resources if they exist."""
        kinds = dict.fromkeys(BUILT_IN) | dict.fromkeys(sorted(self._units))
        return {k: amount_of(k, self[k]) for k in kinds}

    def to_shown(self) -> dict[str, float | int]:
        """For JSON: only what there is of each kind."""
        return {kind: amount_of(kind, units) for kind, units in sorted(self._units.items())}

    def __getitem__(self, kind: str) -> int:
        return self._units.get(kind, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._units)

    def __len__(self) -> int:
        return len(self._units)

    def __contains__(self, kind: object) -> bool:
        return kind in self._units

    def items(self) -> ItemsView[str, int]:
        return self._units.items()  # same as Mapping's, five times as fast

    def __hash__(self) -> int:
        return hash(frozenset(self._units.items()))

    def __eq__(self, other: object) -> bool:
        return self._units == other._units if isinstance(other, ResourceVector) else NotImplemented

    def __repr__(self) -> str:
        return f"ResourceVector({', '.join(f'{k}={amount_of(k, v)}' for k, v in sorted(self._units.items()))})"

    def __add__(self, other: "ResourceVector") -> "ResourceVector":
        return ResourceVector({k: self[k] + other[k] for k in self._kinds_with(other)})

    def __sub__(self, other: "ResourceVector") -> "ResourceVector":
        return ResourceVector({k: self[k] - other[k] for k in self._kinds_with(other)})

    def __rmul__(self, times: int) -> "ResourceVector":
        return ResourceVector({k: times * v for k, v in self._units.items()})

    def _kinds_with(self, other: "ResourceVector") -> dict[str, int]:
        """In an order that is the same in every run: decisions iterate over kinds."""
        return self._units | other._units

    def covers(self, other: "ResourceVector") -> bool:
        """True if this is at least `other` in every kind."""
        return all(self[k] >= v for k, v in other._units.items())

    def at_least_zero(self) -> "ResourceVector":
        return ResourceVector({k: max(0, v) for k, v in self._units.items()})

    def describe(self) -> str:
        order = [*(k for k in (GPU, CPU, MEMORY) if k in self), *sorted(k for k in self if k not in BUILT_IN)]
        return ", ".join(describe(k, self[k]) for k in order) or "nothing"


def total(
    vectors: "Mapping[str, ResourceVector] | list[ResourceVector] | tuple[ResourceVector, ...]",
) -> ResourceVector:
    result = ResourceVector()
    for vector in vectors.values() if isinstance(vectors, Mapping) else vectors:
        result = result + vector
    return result


def whole(kind: str, units: int) -> bool:
    """True if the amount is a whole number of cores, devices or GB."""
    return math.gcd(units, scale(kind)) == scale(kind)
