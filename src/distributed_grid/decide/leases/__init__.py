"""Leases: which callers may change one, which ones a new cluster adopts, and where reclaim hooks may lead."""
