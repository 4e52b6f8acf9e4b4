"""Workloads in one process, without Ray."""
