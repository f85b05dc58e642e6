"""Proven change and rollback: components that run beside a mesh, on the same items."""
