"""The load on a server, the processes to measure, and the table of figures."""
