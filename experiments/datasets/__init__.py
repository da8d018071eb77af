"""The data sets of the experiments: what they are, where people get them, and how their published files are read."""
