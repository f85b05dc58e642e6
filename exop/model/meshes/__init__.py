"""Meshes as values: nodes, connections, differences, topology files, checks."""
