"""State: tables that operators declare, and the backing stores that keep them."""
