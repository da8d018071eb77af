"""What is known of a source that is gone."""
