"""The meaning of measurements: snapshots, pressure, trends, pending demand, and the names of raylets."""
