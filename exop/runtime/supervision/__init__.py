"""Supervision of user code: time limits, failure policies, interrupts."""
