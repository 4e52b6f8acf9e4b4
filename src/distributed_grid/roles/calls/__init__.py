"""Calls to members of roles: who is there, handles of one and of all, what carries calls, what errors say."""
