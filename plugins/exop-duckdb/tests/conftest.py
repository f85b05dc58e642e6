"""The tests run where the plugin is installed."""

from importlib.util import find_spec

collect_ignore = (
    [] if find_spec("exop_duckdb") and find_spec("sqlglot") else ["test_duckdb.py", "test_failing_windows.py"]
)
