"""Queries behind a Spark Connect server."""
