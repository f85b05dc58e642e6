"""Drivers: they push items. Each one passes a safe point between two items."""
