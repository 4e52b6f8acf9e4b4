"""State that outlives a process: the boost file, the audit log, and their paths."""
