"""Requests: granted at once, or queued and admitted by what `decide.queue` says."""
