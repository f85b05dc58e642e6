"""Values as bytes and as JSON, each with its exact type."""
