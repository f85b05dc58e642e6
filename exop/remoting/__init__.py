"""Talking to other processes: the control connection."""
