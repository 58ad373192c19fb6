"""Kafka's clients at pixy's Kafka API, beside Apache Kafka."""
