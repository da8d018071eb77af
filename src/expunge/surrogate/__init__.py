"""What is known of a source that is gone, from rows that resemble it, or from the source itself."""
