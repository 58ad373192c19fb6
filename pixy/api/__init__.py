"""The doors: each translates one protocol to the calls of `pixy.proxy`, and nothing else."""
