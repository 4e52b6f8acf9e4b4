"""Leases: the one writer. The ledger and its state, granting, release, reclaim, the reconciler, recovery."""
