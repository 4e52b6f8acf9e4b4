"""Tasks: placed, watched and ended, as `decide.scheduler` decides."""
