"""Queries as slets: of SQL, of functions, of scripts, of single operators, of aggregates."""
