"""Observe the cluster: measured load, trends and forecasts, and pending demand."""
