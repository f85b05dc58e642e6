"""The bundle life cycle: units that are installed, started, updated, stopped and uninstalled at run time."""
