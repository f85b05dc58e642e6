"""Proven changes and rollback: successors on trial, and standbys, which follow a leader on copies of its items."""
