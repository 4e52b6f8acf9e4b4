"""Capacity: what is used, what is free, which nodes can lend it, how it is delivered, and when it comes back."""
