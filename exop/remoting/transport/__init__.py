"""The control connection: sockets, frames, handshake, server and client."""
