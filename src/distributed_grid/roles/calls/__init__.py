"""Calls to members of roles: the roster, handles of members and groups, the transports, and the errors."""
