"""What several experiments measure or draw alike."""
