"""The runtime, from the lowest layer: dataflow, drivers, channels, logs, ports, components, compiler, deployment."""
