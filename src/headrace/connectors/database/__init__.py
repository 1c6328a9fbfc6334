"""`database`: a sink for any database that SQLAlchemy supports."""
