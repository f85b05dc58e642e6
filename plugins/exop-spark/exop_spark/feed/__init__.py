"""The inputs of a query: the feeds of the platform, and the data sources by which Spark's tasks read them."""
