"""Where files come from. Fetching only: what is done with a file is for whoever asked for it."""
