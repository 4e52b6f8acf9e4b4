"""Rebalancing: one look at the cluster in, a bounded list of actions with reasons out."""
