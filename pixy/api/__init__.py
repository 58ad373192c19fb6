"""APIs of the daemon: each translates one protocol to calls of `pixy.proxy`, and nothing else."""
