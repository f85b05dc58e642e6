"""The runtime, from below: dataflow, drivers, channels and logs, ports and components, compiler, deployment, pauses."""
