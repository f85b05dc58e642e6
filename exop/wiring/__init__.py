"""The WiringController: binds ports and channels by connected-to."""
