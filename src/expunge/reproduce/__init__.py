"""The paper's tables and figures, one experiment a file, side by side with ours. May see the source."""
