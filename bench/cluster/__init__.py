"""Three nodes, beside three NATS servers."""
