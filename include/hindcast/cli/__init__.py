"""The command line: `hindcast ...`."""
