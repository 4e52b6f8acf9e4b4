"""Actions without a request: grid lends, returns and moves capacity, as `decide.rebalance` decides."""
