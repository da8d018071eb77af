"""The bound beside the truth on the families that are hardest for it; `report.py` makes the table of tests/soundness/README.md."""
