"""`database`: tables of any database that SQLAlchemy knows."""
