"""What runs the units of a dataflow: the scheduler, hosts and processes."""
