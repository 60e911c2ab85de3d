"""What several test folders share, one noun per module; import the module you need by name."""
