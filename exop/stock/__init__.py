"""The base library of slets and channels, registered through the same hooks as anyone's."""
