"""What measurements mean: snapshots, pressure, trends, pending demand, and which raylet is which node."""
