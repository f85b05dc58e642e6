"""The peers of a platform: the links to them, the data connections, and the remoting service."""
