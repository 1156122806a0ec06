"""Attacks on several updates of one client: what leaks over rounds."""
