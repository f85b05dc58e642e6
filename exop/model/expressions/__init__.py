"""Expressions: one checked tree, and its two compiled forms, for items and for columns."""
