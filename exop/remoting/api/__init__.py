"""The management interface, its wire types, and `RemotePlatform`."""
