"""NATS JetStream, as the measure beside pixy: one server, three servers, and a load client."""
