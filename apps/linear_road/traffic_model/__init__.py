"""The traffic of the generator: cars, congestion, incidents, questions; the same for the same seed, byte for byte."""
