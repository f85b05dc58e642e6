"""Drivers: the threads that push. Each one passes a safe point between two items."""
