"""What is asked: checked once, at the door."""
