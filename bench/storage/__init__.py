"""The storage, beside the raw speed of the machine's disk."""
