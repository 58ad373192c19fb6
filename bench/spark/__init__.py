"""The Spark connector, beside Kafka's own, whose interpreter has no pixy: nothing is imported."""
