"""Calls to members of roles: the registry, handles of members and groups, the transports, and the errors."""
