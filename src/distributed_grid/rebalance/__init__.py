"""What grid does without a request: it lends, returns and moves capacity, as `decide.rebalance` decides."""
