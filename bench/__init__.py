"""What grid costs, measured against the same thing done by hand with Ray: `python -m bench`."""
