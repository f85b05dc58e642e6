"""Durable applications: checkpoints that are consistent, and going on from the last one after a crash."""
