"""State: the tables that operators declare, and the backing stores that persist them."""
