"""What every layer above may use: errors, records, the clock, directories, careful file work.

Nothing here knows of HTTP, of engines' command lines or of the database. A record that two services exchange lives
here, so that neither has to import the other.
"""
