"""Tasks: placed, watched and ended, by what `decide.scheduler` says."""
