"""What grid does without a request: lends, returns and moves, by what `decide.rebalance` says."""
