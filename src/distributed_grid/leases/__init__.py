"""Leases and their one writer: the ledger, granting, release, reclaim, the reconciler, recovery."""
