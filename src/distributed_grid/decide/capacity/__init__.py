"""Capacity: what is used, what is free, who can lend it, how it is delivered, and when it comes back."""
