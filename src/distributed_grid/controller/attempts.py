"""Failed attempts to get in, per client address: an address that fails too often is put off for a while.

A token cannot be guessed, so this is about noise, load, and an audit log that shows the attempts. Hence two rules:

- An address with too many failures gets no more answers to failures.
- An address that tried too many *different* tokens gets no answers at all, right token or not: it is guessing. A job
  that goes on with a revoked token tries only one, and must not lock out the other programs on its machine. On
  loopback a valid token is never locked out, because the owner must always get through.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Final

LIMIT: Final = 20
WINDOW_S: Final = 60.0
PUT_OFF_S: Final = 60.0
_ADDRESSES: Final = 4096


@dataclass(slots=True)
class _Record:
    until: float
    failures: int = 0
    tokens: set[bytes] = field(default_factory=set)


class FailedAttempts:
    """Tracks at most `addresses` addresses with at most `limit` short digests each: clients cannot fill the memory."""

    def __init__(
        self,
        *,
        limit: int = LIMIT,
        addresses: int = _ADDRESSES,
        on_put_off: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._limit = limit
        self._addresses = addresses
        self._on_put_off = on_put_off
        self._records: dict[str, _Record] = {}

    def __len__(self) -> int:
        return len(self._records)

    def failed(self, address: str, given: bytes, *, now: float) -> float:
        """Count one failure; the seconds for which to put the sender off, zero until that is due."""
        key = network_of(address)
        record = self._living(key, now) or self._new(key, now)
        record.failures += 1
        if given and len(record.tokens) < self._limit:
            record.tokens.add(hashlib.sha256(given).digest()[:8])
        if record.failures < self._limit:
            return 0.0
        if record.failures == self._limit:
            record.until = now + PUT_OFF_S
            self._on_put_off(address)
        return record.until - now

    def guesses(self, address: str, *, now: float) -> float:
        """How long a caller with a valid token has to wait because its address has guessed; mostly zero."""
        if not self._records or (record := self._living(network_of(address), now)) is None:
            return 0.0
        return record.until - now if len(record.tokens) >= self._limit and not is_loopback(address) else 0.0

    def _living(self, key: str, now: float) -> _Record | None:
        record = self._records.get(key)
        if record is not None and now >= record.until:
            del self._records[key]
            return None
        return record

    def _new(self, key: str, now: float) -> _Record:
        if len(self._records) >= self._addresses:
            self._records = {k: record for k, record in self._records.items() if record.until > now}
        if len(self._records) >= self._addresses:
            del self._records[next(iter(self._records))]  # the oldest
        self._records[key] = record = _Record(now + WINDOW_S)
        return record


def is_loopback(address: str) -> bool:
    try:
        found = ip_address(address)
    except ValueError:
        return False
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return (mapped or found).is_loopback


def network_of(address: str) -> str:
    """What to count as one client: one IPv4 address, or the /64 of an IPv6 one, which is what one machine is given."""
    if ":" not in address:
        return address
    try:
        found = IPv6Address(address.partition("%")[0])
    except ValueError:
        return address
    return str(found.ipv4_mapped or int(found) >> 64)
