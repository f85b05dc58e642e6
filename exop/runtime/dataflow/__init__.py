"""The path of an item: entries, in-flight items, compiled and fused calls."""
