"""The paper's tables and figures beside ours: one module and one config an experiment, run from a clone.

    python -m experiments --list

Not installed with Expunge. `protocol/` says what an experiment is, runs it and keeps its results; `datasets/` finds and
reads the data; `shared/` is what several experiments measure alike. Unlike the library, experiments may see the source.
"""
