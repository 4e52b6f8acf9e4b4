"""Processes that move to another node, by what `decide.offload` says."""
