"""Plugins for fedsim in a package of their own."""
