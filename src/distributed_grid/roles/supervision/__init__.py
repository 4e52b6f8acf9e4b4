"""How the process that owns a run starts it, keeps it together and supervises it."""
