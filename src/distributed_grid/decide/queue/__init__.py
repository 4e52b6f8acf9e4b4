"""The queue: the order of claims, admission, preemption, and the answers that users get."""
