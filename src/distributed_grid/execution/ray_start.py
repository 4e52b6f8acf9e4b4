"""What is said to every `ray start`, whoever says it, and what it says when the node is up."""

from typing import Final

STARTED: Final = "Ray runtime started"

AGENT_PORTS: Final = (
    "--metrics-export-port",
    "--dashboard-agent-listen-port",
    "--dashboard-agent-grpc-port",
    "--runtime-env-agent-port",
)
"""Without ports of our choosing each raylet waits seconds for its agents to report theirs."""

STAYING: Final = ("--log-style", "record", "--log-color", "false", "--disable-usage-stats", "--block")
"""It goes on for as long as the node does, and writes plain lines."""
