"""Engines with threads of their own, tied to the platform: in memory, or by logs on disk in a durable application."""
