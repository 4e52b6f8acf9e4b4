"""Requests: granted at once, or queued and admitted as `decide.queue` decides."""
