"""`python -m pixy` is the command `pixy`."""

from pixy.cli import main

if __name__ == "__main__":
    main()
