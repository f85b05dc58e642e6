"""Drivers push items. Each driver passes a safe point between two items."""
