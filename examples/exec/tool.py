"""A tool of the command line that is called again and again: python tool.py NUMBER..."""

import argparse

import numpy as np

parser = argparse.ArgumentParser(description="Print the mean of numbers.")
parser.add_argument("numbers", type=float, nargs="+")
print(np.mean(parser.parse_args().numbers))
