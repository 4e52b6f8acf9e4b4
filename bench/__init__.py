"""What grid costs, compared with doing the same by hand with Ray: `python -m bench`."""
