"""The parts of a plan that move between hosts: states, contents of channels, and events on their way."""
