"""In front of a real Kafka, beside aiokafka."""
