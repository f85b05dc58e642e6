"""Slets as values: signatures, ports, settings, mementos."""
