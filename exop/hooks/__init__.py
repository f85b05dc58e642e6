"""Pluggy hooks: what a plugin can add, and how plugins are found."""
