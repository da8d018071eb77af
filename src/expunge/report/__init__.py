"""What people look at: figures as bytes of PNG files."""
