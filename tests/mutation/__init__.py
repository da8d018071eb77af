"""Changes one thing at a time in what can break the guarantee, and sees whether a test notices. `make mutants`."""
