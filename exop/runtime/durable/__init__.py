"""Durable applications: consistent checkpoints, and recovery from the last checkpoint after a crash."""
