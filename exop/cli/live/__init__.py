"""Live displays in the terminal."""
