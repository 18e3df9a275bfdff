"""What tests of several folders share; the folders with tests are no packages and share nothing else."""
